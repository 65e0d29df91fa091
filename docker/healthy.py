"""Health check of a container: ask Flower's /health, over TLS if an authority is given."""

import ssl
import sys
import urllib.request

url, *authority = sys.argv[1:]
trust = ssl.create_default_context(cafile=authority[0]) if authority else None
try:
    with urllib.request.urlopen(url, context=trust, timeout=5) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"{url}: {error}")
