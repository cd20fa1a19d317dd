// Not built: its custom resource definitions are installed in tests, so that what is opt-in for
// clusters with Prometheus is checked by a real API server. `cargo xtask tool prometheus-operator`
// prints its folder.
module sei.io/tools/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
