#!/bin/bash
# test_amx.sh BOCHS [KERNEL]: tests of bf16 by the tiles of AMX, on any machine: Bochs emulates a Xeon that has them
# (Sapphire Rapids), which boots Linux and runs the tests. BOCHS: the folder bochs/ of github.com/bochs-emu/Bochs, where
#
#     patch -p1 <.../dev/test/system/bochs_amx.patch && ./configure --enable-x86-64 --enable-all-optimizations \
#         --enable-avx --enable-evex --enable-amx --disable-docbook --with-nogui && make bochs
#
# was done. The patch adds XFD (extended feature disable), without which Linux gives programs no tiles, and corrects how
# Bochs saves and restores tiles, which it did wrong in commit 783b58f of 2026-08-22. KERNEL: Linux 5.16 or newer;
# default: the newest of /boot. The disk is made by Debian's genisoimage, isolinux, syslinux-common and busybox-static;
# PREFIX: where these were unpacked, if not in /. 16 minutes beside other work. Last line: "N passed, N failed".
set -u
. dev/test/system/checks.sh
bochs=${1:?the folder of Bochs, as the comment on top of this script says}
kernel=${2:-$(find /boot -name 'vmlinuz-*' | sort -V | tail -n 1)}
build=${BUILD:-build}/amx prefix=${PREFIX:-}
tests=("test_matmul AMX" test_gpt test_trainer test_attention)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
# shellcheck disable=SC2046  # a list
make -s ARCH=sapphirerapids MPI=no BUILD="$build" $(printf "$build/bf16/%s\n" "${tests[@]% *}") || exit 1

# ---- the disk: a kernel, and as its file system the tests, their libraries and data
root=$work/root disk=$work/disk
mkdir -p "$root"/{bin,proc,tmp,build,dev/test/reference} "$disk/isolinux"
cp "$prefix/bin/busybox" "$root/bin" && cp dev/test/reference/*.safetensors "$root/dev/test/reference" || exit 1
for program in "${tests[@]% *}"; do
    cp "$build/bf16/$program" "$root/bin"
    for library in $(ldd "$build/bf16/$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"
    done
done
cat >"$root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
dmesg -n 1
export OMP_NUM_THREADS=1
$(for test in "${tests[@]}"; do echo "echo '== $test'; /bin/$test"; done)
sleep 9 # until the serial line has sent all
poweroff -f
END
(cd "$root" && chmod +x init && find . | "$prefix/bin/busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$disk/files.gz"
cp "$kernel" "$disk/kernel" && cp "$prefix/usr/lib/ISOLINUX/isolinux.bin" "$disk/isolinux" &&
    cp "$prefix/usr/lib/syslinux/modules/bios/ldlinux.c32" "$disk/isolinux" || exit 1
# clearcpuid=580: no FSRM, which Bochs has without ERMS; the kernel's memmove needs both
echo "DEFAULT /kernel initrd=/files.gz console=ttyS0,115200 quiet mitigations=off clearcpuid=580 panic=-1" \
    >"$disk/isolinux/isolinux.cfg"
"$prefix/usr/bin/genisoimage" -quiet -o "$work/disk.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table -J -R "$disk" || exit 1

# ---- the machine; what it writes to its serial line is shown as it comes
cat >"$work/bochsrc" <<END
cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=2048, host=2048
romimage: file=$bochs/bios/BIOS-bochs-latest
vgaromimage: file=$bochs/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
ata0-master: type=cdrom, path=$work/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
clock: sync=none
display_library: nogui
log: $work/log
END
: >"$work/serial"
tail -f "$work/serial" &
"$bochs/bochs" -q -f "$work/bochsrc" >"$work/out" 2>&1 </dev/null
tr -d '\r' <"$work/serial" >"$work/said"

# ---- what the tests have said
context() { tail -n 2 "$work/out"; }
for test in "${tests[@]}"; do
    said=$(sed -n "/^== $test$/,/^== /p" "$work/said" | grep ' passed, ' | tail -n 1)
    check "$test: $said" "[[ '$said' =~ ^[1-9][0-9]*' passed, 0 failed' ]]"
done
check "it has tiles" "grep -q '^ok    AMX, any bits' '$work/said'"
finish
