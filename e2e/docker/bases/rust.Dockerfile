# Stands in for the image `rust` where no registry can be reached: what its users have from buildpack-deps that our build uses, and
# this machine's toolchain. The build's context is the toolchain's folder (`rustc --print sysroot`).
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates gcc g++ libc6-dev make pkg-config && rm -rf /var/lib/apt/lists/*
COPY . /usr/local/
