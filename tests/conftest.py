"""What all tests share: no network, one torch thread, one pretrained ViT, the shared data."""

import os
from pathlib import Path

# Before torch and huggingface_hub are imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)
settings.register_profile("fedclusters", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fedclusters")


@pytest.fixture(scope="session")
def cache_dir(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``cache-dir`` that outlives the session, so that the small ViT is pretrained once."""
    cache = getattr(pytestconfig, "cache", None)
    if cache is None:  # pytest -p no:cacheprovider
        return tmp_path_factory.mktemp("cache")
    return Path(cache.mkdir("fedclusters"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and weights; skips where it is absent."""
    root = os.environ.get("FEDCLUSTERS_SHARED", str(REPOSITORY.parent / "shared"))
    data = Path(root).expanduser() / "data"
    if not data.is_dir():
        pytest.skip(f"{data} is absent; set FEDCLUSTERS_SHARED to the folder that holds data/")
    return data
