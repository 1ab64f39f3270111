"""What a process has said of damaged files."""

from __future__ import annotations

from rmqstore_spark.files import configfiles as told
from rmqstore_spark.files.configfiles import Told
from rmqstore_spark.files.systems.local import LocalFiles


def test_no_damage_is_passed_over_however_many_files_there_are(local: LocalFiles) -> None:
    said, paths = Told(), [str(number) for number in range(told._MOST + 10)]
    assert all(said.is_new(local, path, "damaged") for path in paths)
    assert not any(said.is_new(local, path, "damaged") for path in paths[10:])
    assert said.is_new(local, paths[-1], "damaged otherwise")
    assert said.is_new(local, paths[0], "damaged")  # it was forgotten
    assert len(said._texts) == told._MOST


def test_a_file_that_is_sound_again_is_told_of_again(local: LocalFiles) -> None:
    said = Told()
    assert said.is_new(local, "a", "damaged")
    said.forget(local, "a")
    assert said.is_new(local, "a", "damaged")
