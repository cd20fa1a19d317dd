# The same image as `cargo xtask image` writes without a daemon: the program and the libraries it is
# linked with, run as nobody in particular.
FROM rust:1-slim-trixie AS build
WORKDIR /source
COPY . .
RUN cargo xtask image --root --output /image

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENTRYPOINT ["/sei-operator"]
