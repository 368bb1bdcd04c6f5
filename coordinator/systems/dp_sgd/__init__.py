"""DP-SGD among parties (Abadi et al. 2016): federated steps, or rounds of each."""
