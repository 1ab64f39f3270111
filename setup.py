"""Builds the kernel; pyproject.toml describes the distribution."""

from __future__ import annotations

import textwrap
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
KERNEL = "rmqstore_spark/layout/kernel"


class BuildKernel(build_ext):
    """Builds the optional kernel; where that fails, says so in one line and continues."""

    def build_extension(self, ext: Extension) -> None:
        """Build one extension, or leave it out."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - compilers fail in many ways
            cause = textwrap.shorten(str(error) or type(error).__name__, 120, placeholder=" ...")
            print(  # noqa: T201
                f"rmqstore-spark: the compiled kernel was left out, NumPy does its work, slower "
                f"({cause}). To have it, install a C compiler and install again."
            )
            if self.editable_mode or self.inplace:
                # One of an earlier build beside the sources would be taken for this one.
                built = Path(self.get_ext_filename(ext.name)).name
                (ROOT / KERNEL / built).unlink(missing_ok=True)


setup(
    ext_modules=[
        Extension(
            "rmqstore_spark.layout.kernel._kernel",
            sources=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{KERNEL}/c/*.c")),
            depends=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{KERNEL}/c/*.h")),
            extra_compile_args=["-O3"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
