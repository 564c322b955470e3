#!/bin/sh
# Makes a libcuda.so.1 that has every function of the driver which the packages in a folder call, and answers each call
# with "no device" (CUDA_ERROR_NO_DEVICE, 100). With it, libraries for GPUs load on a machine without a driver.
#
# stub_driver.sh FOLDER_OF_PACKAGES OUTPUT_FOLDER
set -eu
packages=$1
output=$2
mkdir -p "$output"
# Symbols of the driver begin with `cu` and a capital letter; those of CUDA's own libraries do, too, and come with them.
find "$packages" -type f -name '*.so*' -exec nm --dynamic --undefined-only {} + 2> /dev/null \
  | sed -n 's/^ *U \(cu[A-Z][A-Za-z0-9_]*\).*$/\1/p' | sort -u \
  | grep -vE '^cu(BLAS|DNN|FFT|File|RAND|SOLVER|SPARSE|TENSOR|PTI)' \
  | sed 's/.*/int &(void) { return 100; }/' > "$output/stub.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$output/libcuda.so.1" "$output/stub.c"
