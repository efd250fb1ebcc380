"""Builds dda's extension module, ``dda._C``.

Every ``csrc/**/*.cpp`` is compiled by torch's own BuildExtension, which knows the flags and the C++
standard that the installed torch asks for. The files ``csrc/device/cpu_ops_*.cpp`` are the
exception: each holds the SIMD routines of one instruction set and needs flags of its own, so they
become objects first and are linked in. ``build/`` keeps the objects of each torch version apart,
and only what has changed is compiled again.

Read from the environment: ``DDA_BUILD`` (auto, cpu, cuda, rocm), ``MAX_JOBS``, ``CXX``,
``TORCH_CUDA_ARCH_LIST``, ``PYTORCH_ROCM_ARCH``, and ``DDA_FAILPOINTS=1`` for a build in which
tests can stop or kill a rank at named points.
"""

import os
import platform
import runpy
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pprint import pformat

from setuptools import Extension, setup

# A dda that is already installed must not run, and cannot fail, when torch is imported here.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(
        f"dda: building needs torch, which cannot be imported here ({error}).\n"
        "Install torch first, then: pip install --no-build-isolation ."
    )

ROOT = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(ROOT / "dda/_version.py"))["__version__"]

# Contraction would round a * b + c once in one place and twice in another; dda promises equal bits.
FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
INCLUDES = [str(ROOT / "csrc/include"), str(ROOT / "csrc")]

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
INSTRUCTION_SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS.update(avx2=AVX2, avx512=AVX2 + AVX512)

# Used when TORCH_CUDA_ARCH_LIST is unset: torch would ask a GPU, which a build machine may lack.
CUDA_ARCHITECTURES = "8.0;9.0+PTX"


def sources(*patterns: str) -> list[str]:
    """Returns the files under csrc/ that match, relative to the project, in a fixed order."""
    found = (path for pattern in patterns for path in (ROOT / "csrc").rglob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def choose_device() -> str:
    """Returns which device to build for besides the CPU: "cuda", "rocm", or "cpu" for none.

    Raises:
        SystemExit: DDA_BUILD names a device that cannot be built for here.
    """
    wanted = os.environ.get("DDA_BUILD", "auto")
    missing = {"cpu": ""}
    for device, version, home in (
        ("cuda", torch.version.cuda, cpp_extension.CUDA_HOME),
        ("rocm", torch.version.hip, cpp_extension.ROCM_HOME),
    ):
        if not sources("*.cu"):
            missing[device] = f"this version of dda has no {device.upper()} sources yet"
        elif version is None:
            missing[device] = f"torch {torch.__version__} is not a {device.upper()} build"
        elif home is None:
            missing[device] = f"no toolkit was found; set {device.upper()}_HOME"
        else:
            missing[device] = ""
    if wanted == "auto":
        return next(device for device in ("cuda", "rocm", "cpu") if not missing[device])
    if wanted not in missing:
        sys.exit(f"dda: DDA_BUILD={wanted} is not one of auto, cpu, cuda, rocm")
    if missing[wanted]:
        sys.exit(f"dda: DDA_BUILD={wanted}: {missing[wanted]}. DDA_BUILD=cpu builds for the CPU.")
    return wanted


def compile_instruction_sets(folder: Path) -> list[str]:
    """Compiles csrc/device/cpu_ops_*.cpp, each with its instruction set's flags.

    Args:
        folder: where the objects are kept. An object that is newer than its source, every header
            and this file is left as it is.

    Returns:
        The paths of the objects.
    """
    compiler = shlex.split(cpp_extension.get_cxx_compiler())
    headers = [ROOT / path for path in sources("*.h")]
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(name: str) -> str:
        source = ROOT / f"csrc/device/cpu_ops_{name}.cpp"
        target = folder / f"cpu_ops_{name}.o"
        newest = max(path.stat().st_mtime for path in [source, Path(__file__), *headers])
        if not target.exists() or target.stat().st_mtime < newest:
            includes = [f"-I{path}" for path in INCLUDES]
            command = [*compiler, "-std=c++17", "-fPIC", *FLAGS, *INSTRUCTION_SETS[name], *includes]
            command += ["-c", str(source), "-o", str(target)]
            print(shlex.join(command), flush=True)
            subprocess.run(command, check=True)
        return str(target)

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        return list(pool.map(compile_one, INSTRUCTION_SETS))


def build_info(device: str) -> dict[str, object]:
    """Returns what dda/_build_info.py records of this build."""
    compiler = shlex.split(cpp_extension.get_cxx_compiler())
    banner = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True)
    return {
        "VERSION": VERSION,
        "TORCH": str(torch.__version__),
        "PYTHON": platform.python_version(),
        "DEVICE": device,
        "CUDA": torch.version.cuda if device == "cuda" else None,
        "HIP": torch.version.hip if device == "rocm" else None,
        "COMPILER": banner.stdout.splitlines()[0],
        "FLAGS": FLAGS,
        "INSTRUCTION_SETS": list(INSTRUCTION_SETS),
        "FAILPOINTS": FAILPOINTS,
    }


class Build(cpp_extension.BuildExtension):
    """torch's BuildExtension, plus the objects of the instruction sets and _build_info.py."""

    def finalize_options(self) -> None:
        """Keeps the objects of each torch version and kind of build in a folder of their own."""
        super().finalize_options()
        tag = f"{sys.implementation.cache_tag}-torch{torch.__version__}-{DEVICE}"
        self.build_temp = str(ROOT / "build" / (tag + "-failpoints" * FAILPOINTS))
        self.force = True  # always link: ninja knows better than setuptools what is out of date

    def run(self) -> None:
        """Compiles, links, and writes _build_info.py beside the module."""
        info = build_info(DEVICE)
        print(f"dda {VERSION}: building dda._C")
        print("".join(f"  {name.lower()}: {value}\n" for name, value in info.items()), flush=True)
        (extension,) = self.extensions
        try:
            extension.extra_objects = compile_instruction_sets(Path(self.build_temp) / "device")
        except subprocess.CalledProcessError as error:
            sys.exit(f"dda: the compiler failed (exit status {error.returncode})")
        super().run()
        path = Path(self.get_ext_fullpath(extension.name)).with_name("_build_info.py")
        lines = [f"{name} = {pformat(value, width=90)}\n" for name, value in info.items()]
        path.write_text(
            '"""What this build of dda was made with; written by setup.py."""\n\n' + "".join(lines)
        )


def make_extension() -> Extension:
    """Returns the description of dda._C for the chosen device."""
    defines = ["-DDDA_FAILPOINTS"] * FAILPOINTS
    own = {f"csrc/device/cpu_ops_{name}.cpp" for name in ("baseline", "avx2", "avx512")}
    files = [path for path in sources("*.cpp") if path not in own]
    # -isystem: torch's headers do not compile without warnings, ours do.
    system = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    arguments = {"cxx": [*FLAGS, *defines, *system]}
    if DEVICE == "cpu":
        kind = cpp_extension.CppExtension
    else:
        kind = cpp_extension.CUDAExtension  # on ROCm too, where torch translates the sources
        files += sources("*.cu")
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", CUDA_ARCHITECTURES)
        exact = "--fmad=false" if DEVICE == "cuda" else "-ffp-contract=off"
        arguments["nvcc"] = ["-O3", exact, *defines]
    return kind("dda._C", files, include_dirs=list(INCLUDES), extra_compile_args=arguments)


if sys.platform != "linux":
    sys.exit(f"dda runs on Linux; this is {sys.platform}")
FAILPOINTS = os.environ.get("DDA_FAILPOINTS") == "1"
DEVICE = choose_device()

setup(ext_modules=[make_extension()], cmdclass={"build_ext": Build})
