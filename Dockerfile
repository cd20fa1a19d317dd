# The same image that `cargo xtask image` writes without a daemon: the program and the libraries that it
# is linked with, run as a user without privileges.
FROM rust:1-slim-trixie AS build
WORKDIR /source
COPY . .
# The version that the program reports; there is no repository in here to read it from.
ARG SEI_OPERATOR_VERSION
RUN cargo xtask image --root --output /image

FROM scratch
COPY --from=build /image/ /
# Without transparent huge pages the allocator returns more memory after a burst.
ENV MIMALLOC_ALLOW_THP=0
USER 65532:65532
ENTRYPOINT ["/sei-operator"]
