"""Builds dda's extension module, ``dda._C``.

The engine, all of ``csrc/`` but ``csrc/torch/``, is compiled first, by ninja: it needs nothing of
torch, and the SIMD routines of each instruction set need flags of their own. Then torch's own
BuildExtension, which knows the flags and the C++ standard that the installed torch asks for,
compiles ``csrc/torch/`` and links both. ``build/`` keeps the objects of each torch version apart,
and only what has changed is compiled again.

Read from the environment: ``DDA_BUILD`` (auto, cpu, cuda, rocm), ``MAX_JOBS``, ``CXX``,
``TORCH_CUDA_ARCH_LIST``, ``PYTORCH_ROCM_ARCH``, and ``DDA_FAILPOINTS=1`` for a build in which
tests can stop or kill a rank at named points.
"""

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
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

try:
    import ninja  # may be installed in this environment without being on the PATH

    os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ.get("PATH", "")])
except ImportError:
    if shutil.which("ninja") is None:
        sys.exit("dda: building needs ninja. Install it: pip install ninja")

ROOT = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(ROOT / "dda/_version.py"))["__version__"]

# Contraction would round a * b + c once in one place and twice in another; dda promises equal bits.
FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
INCLUDES = [str(ROOT / "csrc/include"), str(ROOT / "csrc")]

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
# Some versions of gcc warn about the bodies of their own AVX-512 functions.
AVX512 += ["-Wno-maybe-uninitialized"]
SIMD = "csrc/device/cpu_ops_"  # … and an instruction set
INSTRUCTION_SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS.update(avx2=AVX2, avx512=AVX2 + AVX512)

# Used when TORCH_CUDA_ARCH_LIST is unset: torch would ask a GPU, which a build machine may lack.
CUDA_ARCHITECTURES = "8.0;9.0+PTX"


def sources(*patterns: str) -> list[str]:
    """Returns the files under csrc/ that match, relative to the project, in a fixed order."""
    found = (path for pattern in patterns for path in (ROOT / "csrc").rglob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def is_for_device(path: str) -> bool:
    """Returns whether a file under csrc/ belongs to this build."""
    if Path(path).name == "cpu_only.cpp":
        return DEVICE == "cpu"
    return DEVICE != "cpu" or not ("/gpu/" in path or Path(path).name.startswith("gpu_"))


def gencode() -> list[str]:
    """Returns nvcc's flags for the architectures that TORCH_CUDA_ARCH_LIST names."""
    flags = []
    for name in re.split(r"[;, ]+", os.environ["TORCH_CUDA_ARCH_LIST"].strip()):
        number = name.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if name.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


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
        if device == "rocm":
            missing[device] = "this version of dda has no ROCm sources yet"
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


def compile_engine(folder: Path) -> list[str]:
    """Compiles what does not include torch: all of csrc/ but csrc/torch/.

    Args:
        folder: where the objects are kept, with the file that tells ninja how they are made.

    Returns:
        The paths of the objects.
    """
    compiler = [*shlex.split(cpp_extension.get_cxx_compiler()), "-std=c++17", "-fPIC", *FLAGS]
    compiler += ["-DDDA_FAILPOINTS"] * FAILPOINTS + [f"-I{path}" for path in INCLUDES]
    rules = [
        "rule compile",
        f"  command = {shlex.join(compiler)} $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
    ]
    if DEVICE == "cuda":
        host = shlex.split(cpp_extension.get_cxx_compiler())[0]
        nvcc = [f"{cpp_extension.CUDA_HOME}/bin/nvcc", "-ccbin", host, "-std=c++17", "-O3"]
        nvcc += ["--fmad=false", "-Xcompiler=-fPIC,-fvisibility=hidden", *gencode()]
        nvcc += [f"-I{path}" for path in INCLUDES]
        rules += [
            "rule device",
            f"  command = {shlex.join(nvcc)} -MD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
        ]
    objects = []
    for path in filter(is_for_device, sources("*.cpp", "*.cu")):
        flags: list[str] | None = []
        if path.startswith(SIMD):
            flags = INSTRUCTION_SETS.get(path.removeprefix(SIMD).removesuffix(".cpp"))
        if path.startswith("csrc/torch/") or flags is None:  # None: another processor's
            continue
        objects.append(str((folder / path).with_suffix(".o")))
        rule = "device" if path.endswith(".cu") else "compile"
        rules.append(f"build {escape(objects[-1])}: {rule} {escape(str(ROOT / path))}")
        if Path(path).name.startswith("gpu_"):
            flags += ["-isystem", f"{cpp_extension.CUDA_HOME}/include"]
        rules.append(f"  flags = {shlex.join(flags)}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.ninja").write_text("\n".join(rules) + "\n")
    jobs = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
    subprocess.run(["ninja", "-v", *jobs, "-C", str(folder)], check=True)
    return objects


def escape(path: str) -> str:
    """Returns a path in the spelling of ninja's files."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def torch_units(folder: Path) -> list[str]:
    """Writes the translation units that hold csrc/torch/, and returns their paths.

    A file that includes torch spends twenty seconds on torch's headers and one on itself, so most
    of them share a unit. The operators' files repeat each other's names and stay alone.
    """
    paths = [path for path in sources("torch/*.cpp") if is_for_device(path)]
    alone = [path for path in paths if Path(path).name.startswith("operators")]
    together = [path for path in paths if path not in alone]
    folder.mkdir(parents=True, exist_ok=True)
    units = []
    for i, group in enumerate([together[::2], together[1::2], *([path] for path in alone)]):
        text = "".join(f'#include "{Path(path).relative_to("csrc")}"\n' for path in group)
        unit = folder / f"torch_{i}.cpp"
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        units.append(str(unit))
    return units


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
    """torch's BuildExtension, plus the objects of the engine and _build_info.py."""

    def finalize_options(self) -> None:
        """Keeps the objects of each torch version and kind of build in a folder of their own."""
        super().finalize_options()
        tag = f"{sys.implementation.cache_tag}-torch{torch.__version__}-{DEVICE}"
        self.build_temp = str(ROOT / "build" / tag)
        self.force = True  # always link: ninja knows better than setuptools what is out of date

    def run(self) -> None:
        """Compiles, links, and writes _build_info.py beside the module."""
        info = build_info(DEVICE)
        print(f"dda {VERSION}: building dda._C")
        print("".join(f"  {name.lower()}: {value}\n" for name, value in info.items()), flush=True)
        (extension,) = self.extensions
        try:
            folder = "engine" + "-failpoints" * FAILPOINTS
            extension.extra_objects = compile_engine(Path(self.build_temp) / folder)
        except subprocess.CalledProcessError as error:
            sys.exit(f"dda: the compiler failed (exit status {error.returncode})")
        extension.sources += torch_units(Path(self.build_temp) / "torch")
        super().run()
        module = Path(self.get_ext_fullpath(extension.name))
        if b"libstdc++.so" not in module.read_bytes():
            module.unlink()
            sys.exit(
                f"dda: {info['COMPILER']} links a C++ library of its own into dda, which crashes "
                "where torch's meets it. Choose another compiler, for example CXX=/usr/bin/g++"
            )
        path = module.with_name("_build_info.py")
        lines = [f"{name} = {pformat(value, width=90)}\n" for name, value in info.items()]
        path.write_text(
            '"""What this build of dda was made with; written by setup.py."""\n\n' + "".join(lines)
        )


def make_extension() -> Extension:
    """Returns the description of dda._C for the chosen device."""
    # -isystem: torch's headers do not compile without warnings, ours do.
    system = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    arguments = {"cxx": [*FLAGS, *system]}
    # The GPU's own sources are compiled with the engine; this adds the libraries.
    kind = cpp_extension.CppExtension if DEVICE == "cpu" else cpp_extension.CUDAExtension
    return kind("dda._C", [], include_dirs=list(INCLUDES), extra_compile_args=arguments)


if not Path(sysconfig.get_path("include"), "Python.h").exists():
    sys.exit("dda: Python's headers are missing; on Debian and Ubuntu: apt-get install python3-dev")
if sys.platform != "linux":
    sys.exit(f"dda runs on Linux; this is {sys.platform}")
FAILPOINTS = os.environ.get("DDA_FAILPOINTS") == "1"
DEVICE = choose_device()
if DEVICE == "cuda":
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", CUDA_ARCHITECTURES)

setup(ext_modules=[make_extension()], cmdclass={"build_ext": Build})
