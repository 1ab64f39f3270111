"""Builds and describes the distribution `rmqstore-spark`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
KERNEL = "rmqstore_spark/layout/kernel"

IN_NOTEBOOKS = [
    "ipykernel",
    "matplotlib>=3.8",
    "pandas>=2.2,<3",  # pyspark 4.3 does not support pandas 3
]
NOTEBOOKS = [
    *IN_NOTEBOOKS,
    "jupyterlab>=4",
]
TESTS = [
    *IN_NOTEBOOKS,
    "chispa>=0.10",
    "hypothesis>=6.100",
    "nbclient>=0.10",
    "psutil>=6",
    "pytest>=9",
    "pytest-randomly>=3.15",
    "pytest-xdist>=3.6",
]
DEV = [
    *TESTS,
    "build>=1.2",
    "install-jdk>=1.1",
    # What these find changes from one version to the next.
    "import-linter>=2.5,<3",
    "mypy>=2.4,<3",
    "ruff>=0.17,<0.18",
]


def version() -> str:
    """Read the version without importing the package, whose needs are not installed yet."""
    text = (ROOT / "rmqstore_spark" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise SystemExit("rmqstore_spark/__init__.py has no line `__version__ = ...`")
    return found[1]


class BuildKernel(build_ext):
    """Builds the optional kernel; where that fails, says so in one line and goes on."""

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
    name="rmqstore-spark",
    version=version(),
    description="RocketMQ message stores as a Spark data source, batch and streaming",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["rocketmq", "spark", "pyspark", "arrow", "streaming", "data source"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Database",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["rmqstore_spark", "rmqstore_spark.*"]),
    py_modules=["pyspark_rmqstore"],
    package_data={"rmqstore_spark": ["py.typed"], "rmqstore_spark.layout.kernel": ["*.pyi"]},
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
    install_requires=[
        "fsspec>=2024.2",
        "hpack>=4.0",
        "isal>=1.5",
        "lz4>=4.3",
        "numpy>=1.26",
        "prometheus-client>=0.20",
        "pyarrow>=18",
        "pyspark>=4.3,<5",  # 4.2 copies the options of tables into other schemas (tables.py)
        "rich>=13",
        "typer>=0.12",
        "zstandard>=0.22",
    ],
    extras_require={"notebooks": NOTEBOOKS, "tests": TESTS, "dev": DEV},
    entry_points={"console_scripts": ["rmqstore = rmqstore_spark.cli:main"]},
)
