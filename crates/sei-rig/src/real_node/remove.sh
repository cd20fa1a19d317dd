# Ends everything that a real node started, when stdin closes: its owner has ended or dropped it.
# Arguments: its folder, its bridge, its cgroup.
folder=$1 bridge=$2 group=$3
read -r _

end_processes() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe") in
            */containerd | */containerd-shim-runc-v2 | */kubelet | */kube-scheduler)
                if grep -qF "$folder" "$process/cmdline"; then kill -9 "${process#/proc/}"; fi ;;
        esac
    done
    # Containers, which no other program of the machine puts into this cgroup.
    find /sys/fs/cgroup -path "*/$group/*" -name cgroup.procs -exec cat {} + | sort -u |
        while read -r id; do kill -9 "$id"; done
}

unmount() {
    while read -r _ _ _ _ place _; do
        case $place in "$folder"/*) echo "$place" ;; esac
    done </proc/self/mountinfo | sort -r | while read -r place; do umount -l "$place"; done
}

# Paths outside of the folder that no setting moves into it.
remove_elsewhere() {
    for file in "$folder"/state/io.containerd.runtime.v2.task/*/*/address; do
        if [ -e "$file" ]; then rm -f "$(sed 's#^unix://##' "$file")"; fi
    done
    for pod in "$folder"/content/io.containerd.grpc.v1.cri/sandboxes/*; do
        rm -f /var/lib/cni/results/*-"${pod##*/}"-*
    done
    for link in /var/log/containers/*; do
        case $(readlink "$link") in "$folder"/*) rm -f "$link" ;; esac
    done
    rmdir /var/log/containers /var/lib/cni/results /var/lib/cni /run/containerd/s /run/containerd
    if ! pidof kubelet; then
        rm -f /var/lib/kubelet/device-plugins/kubelet.sock
        rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet
    fi
    ip link delete "$bridge"
    # A cgroup is removed only when its processes have ended.
    find /sys/fs/cgroup -depth -type d \( -path "*/$group" -o -path "*/$group/*" \) -exec rmdir {} +
    [ -z "$(find /sys/fs/cgroup -maxdepth 2 -name "$group")" ]
}

for _ in $(seq 150); do
    end_processes
    unmount
    remove_elsewhere && rm -rf --one-file-system "$folder" && exit
    sleep 0.1
done >/dev/null 2>&1
