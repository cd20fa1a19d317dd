# The same image that `cargo xtask image` writes without a daemon: the program and the libraries that it
# is linked with, run as a user without privileges.
FROM rust:1-slim-trixie AS build
WORKDIR /source
# Builds the operator's allocator.
RUN apt-get update && apt-get install --yes --no-install-recommends make
COPY . .
# The version that the program reports; there is no repository in here to read it from.
ARG SEI_OPERATOR_VERSION
RUN cargo xtask image --root --output /image

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENTRYPOINT ["/sei-operator"]
