# What kind of machine is this? Prints sections of plain text for rigs/probe.py to read; changes nothing.
# POSIX sh (dash, busybox, bash), Linux and macOS. Every tool may be missing: then its section is empty. Exits with 0.
# $1: rig_home, an absolute path or one that begins with ~/. $2: the python to prefer, or nothing.

have() { command -v "$1" >/dev/null 2>&1; }

# A tool that hangs (nvidia-smi on a card that fell off the bus) must not hang the probe.
if have timeout && timeout 5 true >/dev/null 2>&1; then
    try() { have "$1" && timeout 20 "$@" 2>&1; }
else
    try() { have "$1" && "$@" 2>&1; }
fi

# Like cat, but with nothing but the shell.
show() {
    [ -r "$1" ] || return 0
    while IFS= read -r line || [ -n "$line" ]; do printf '%s\n' "$line"; done <"$1"
}

cpu_linux() {
    # One core stands for all: a big machine would print hundreds of kilobytes.
    seen_model= seen_flags=
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "model name"* | "Model"* | "Hardware"*) [ -n "$seen_model" ] || printf '%s\n' "$line"; seen_model=1 ;;
            flags* | Features*) [ -n "$seen_flags" ] || printf '%s\n' "$line"; seen_flags=1 ;;
        esac
        [ -n "$seen_model" ] && [ -n "$seen_flags" ] && break
    done </proc/cpuinfo
}

cpu_macos() {
    try sysctl machdep.cpu.brand_string machdep.cpu.features machdep.cpu.leaf7_features
    try sysctl hw.optional
}

memory_linux() {
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in MemTotal:* | MemAvailable:*) printf '%s\n' "$line" ;; esac
    done </proc/meminfo
}

gpus() {
    columns=name,memory.total,memory.used,compute_cap,driver_version,uuid
    answer=$(try nvidia-smi --query-gpu=$columns --format=csv,noheader,nounits)
    case $answer in
        *compute_cap*)
            # Drivers before 2021 do not know this column and then print nothing else.
            columns=name,memory.total,memory.used,driver_version,uuid
            answer=$(try nvidia-smi --query-gpu=$columns --format=csv,noheader,nounits)
            ;;
    esac
    printf '%s\n' "$answer"
}

gpu_header() {
    # The header only: the table below it names other people's processes.
    try nvidia-smi | while IFS= read -r line; do
        case $line in *"Driver Version"* | *"CUDA Version"* | *"UMD Version"*) printf '%s\n' "$line" ;; esac
    done
}

pci_of_google() {
    for vendor in /sys/bus/pci/devices/*/vendor; do
        [ -r "$vendor" ] || continue
        read -r id <"$vendor"
        [ "$id" = 0x1ae0 ] || continue
        read -r device <"${vendor%/vendor}/device" && printf 'pci\t%s\n' "$device"
    done
}

tpu_hints() {
    for node in /dev/accel[0-9]* /dev/vfio/[0-9]*; do [ -e "$node" ] && printf 'node\t%s\n' "$node"; done
    [ -n "$TPU_ACCELERATOR_TYPE" ] && printf 'hint\tTPU_ACCELERATOR_TYPE=%s\n' "$TPU_ACCELERATOR_TYPE"
    for file in /etc/environment /run/tpu-env /home/tpu-runtime/tpu-env; do
        [ -r "$file" ] || continue
        while IFS= read -r line || [ -n "$line" ]; do
            case $line in *ACCELERATOR_TYPE*) printf 'hint\t%s\n' "$line" ;; esac
        done <"$file"
    done
}

python_version() {
    # Without Xcode's tools, this one on macOS opens a window that offers to install them.
    [ "$(command -v "$1")" = /usr/bin/python3 ] && have xcode-select && { xcode-select -p >/dev/null 2>&1 || return 0; }
    # Asked of the interpreter itself: a pyenv shim of that name may stand for nothing.
    answer=$(try "$1" -c 'import sys; print("\t".join(["python", sys.argv[1], sys.executable, "%d.%d.%d" % sys.version_info[:3]]))' "$2")
    case $answer in python*) printf '%s\n' "$answer" ;; esac
}

pythons() {
    if [ -n "$preferred" ]; then python_version "$preferred" preferred; fi
    for version in 3.14 3.13 3.12 3.11 3; do
        # A login without a profile, as ssh makes it, lacks these folders in its path.
        for folder in "" /usr/local/bin/ /opt/homebrew/bin/ "$HOME/.local/bin/"; do
            python_version "${folder}python$version" found
        done
    done
}

nearest_existing() {
    folder=$1
    while [ ! -d "$folder" ]; do
        case $folder in
            /*/*) folder=${folder%/*} ;;
            *) folder=/ ;;
        esac
    done
    printf '%s\n' "$folder"
}

expand() {
    # The tilde is the point here: it came as a letter, not from this shell.
    # shellcheck disable=SC2088
    case $1 in
        "~") printf '%s\n' "$HOME" ;;
        "~/"*) printf '%s/%s\n' "$HOME" "${1#??}" ;;
        *) printf '%s\n' "$1" ;;
    esac
}

section() { printf '\n@@%s\n' "$1"; }

probe() {
    rig_home=$(expand "$1")
    preferred=$(expand "${2:-}")
    section os; try uname -s
    section hostname; try uname -n
    section kernel; try uname -r
    section machine; try uname -m
    section os_release
    show /etc/os-release
    try sw_vers
    section libc
    try getconf GNU_LIBC_VERSION
    try ldd --version
    section cpu
    if [ -r /proc/cpuinfo ]; then cpu_linux; else cpu_macos; fi
    section cpu_count
    try nproc || try getconf _NPROCESSORS_ONLN
    section memory
    if [ -r /proc/meminfo ]; then memory_linux; else try sysctl hw.memsize; try vm_stat; fi
    section disk; try df -Pk "$(nearest_existing "$rig_home")"
    section python; pythons
    section docker; try docker --version
    section nvcc; try nvcc --version || try /usr/local/cuda/bin/nvcc --version
    section gpus; gpus
    section gpu_header; gpu_header
    section tpu; pci_of_google; tpu_hints
    section boot_id
    show /proc/sys/kernel/random/boot_id
    [ -r /proc/sys/kernel/random/boot_id ] || try sysctl -n kern.bootsessionuuid
    section end
}

# Called on the last line, so that a script cut on its way does nothing; with no input, so that no tool eats the script.
PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
export PATH LC_ALL
probe "$@" </dev/null 2>/dev/null
exit 0
