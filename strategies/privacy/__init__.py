"""Clipping, noise, secure sum, ledger and calibration: everything a privacy claim rests on."""
