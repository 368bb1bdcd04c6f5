"""The published form of NVDP as a run: a layer learns from public text, parties sample by it, nothing is promised."""
