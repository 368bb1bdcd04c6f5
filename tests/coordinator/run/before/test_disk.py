"""A disk that is too small for a run is told before anything is asked."""

import pytest

from coordinator.errors import RunError
from coordinator.forecasting.needs import Needs
from coordinator.run.before import disk


def test_a_run_starts_only_where_what_is_to_stay_free_stays_free(tmp_path, monkeypatch):
    needs = Needs(memory=0, disk=3_000_000, party_memory=0, party_disk=0)
    monkeypatch.setattr(disk, "free_disk", lambda folder: 5_000_000)
    disk.check_disk(needs, 2_000_000, tmp_path)
    with pytest.raises(RunError, match=r"has 5.0 MB free; this run may write 3.0 MB, and 2.0 MB are to stay free"):
        disk.check_disk(needs, 2_000_001, tmp_path)
