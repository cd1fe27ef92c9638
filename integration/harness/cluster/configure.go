package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// token is the credential of every client of the apiserver. It need not be secret, because only processes in the
// network namespace can connect.
const token = "cluster-test"

// configure writes the configuration files of all components.
func (c *Cluster) configure(o Options) error {
	key, err := serviceAccountKey()
	if err != nil {
		return err
	}
	files := map[string]string{
		"tokens":          token + ",admin,admin,system:masters\n",
		"service-account": key,
		"resolv.conf":     "",
		"cni/10-pods.conflist": `{
  "cniVersion": "0.4.0", "name": "pods",
  "plugins": [{
    "type": "ptp", "mtu": 1500,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podNetwork + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`,
		"kubeconfig": `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:` + APIPort + `", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: ` + token + `}}]
`,
		"scheduler.yaml": `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: ` + c.file("kubeconfig") + `}
leaderElection: {leaderElect: false}
`,
		"kubelet.yaml":    c.kubeletConfig(o),
		"containerd.toml": c.containerdConfig(),
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(c.file(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(c.file(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// kubeletConfig returns the kubelet's configuration file. With KubeletInUserNamespace, the kubelet continues if it is
// not allowed to change a kernel parameter or the OOM score of a process, as in sandboxes. Eviction of pods and removal
// of images are turned off, because the disk of the machine may be nearly full. With CSIVolumeHealth, the kubelet
// reports volumes that a driver calls abnormal.
func (c *Cluster) kubeletConfig(o Options) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%s
enforceNodeAllocatable: [none]
failCgroupV1: false
failSwapOn: false
featureGates: {KubeletInUserNamespace: true, CSIVolumeHealth: true}
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
maxPods: %d
resolvConf: %s
clusterDomain: cluster.test
clusterDNS: [%s]
evictionHard: {memory.available: "1Mi", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 20s
readOnlyPort: 0
`, os.Getenv(groupVariable), o.MaxPods, c.file("resolv.conf"), NodeIP)
}

// containerdConfig returns containerd's configuration file. The state and the sockets of shims are below /run.
func (c *Cluster) containerdConfig() string {
	return `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniDir + `"
    conf_dir = "` + c.file("cni") + `"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`
}

// program returns the path of the executable of a component.
func (c *Cluster) program(name Component) string {
	if name == Etcd || name == Containerd {
		return string(name)
	}
	return filepath.Join(c.bin, string(name))
}

// controllers are the controllers of the controller manager that the tests need. The others are turned off, because
// they take processor time.
var controllers = []string{
	"daemonset-controller", "deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller",
	"namespace-controller", "node-lifecycle-controller", "disruption-controller", "garbage-collector-controller",
	"pod-garbage-collector-controller", "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
	"persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller",
	"serviceaccount-controller", "root-ca-certificate-publisher-controller",
}

// arguments returns the command-line arguments of a component.
func (c *Cluster) arguments(name Component) []string {
	switch name {
	case Etcd:
		const clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
		return []string{"--data-dir=/run/etcd", "--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
			"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers}
	case APIServer:
		// Pods connect to the API at NodeIP, because there is no kube-proxy that implements service addresses. Pods
		// have the rights of their service accounts. All components are administrators.
		return []string{"--etcd-servers=http://127.0.0.1:2379", "--secure-port=" + APIPort, "--bind-address=0.0.0.0",
			"--advertise-address=" + NodeIP,
			"--cert-dir=" + c.file("apiserver"), "--token-auth-file=" + c.file("tokens"), "--authorization-mode=RBAC",
			"--service-account-issuer=https://cluster.test", "--service-account-key-file=" + c.file("service-account"),
			"--service-account-signing-key-file=" + c.file("service-account"), "--service-cluster-ip-range=10.96.0.0/24",
			"--endpoint-reconciler-type=none", "--allow-privileged=true",
			"--kubelet-preferred-address-types=InternalIP", "--profiling=false"}
	case Controller:
		return []string{"--kubeconfig=" + c.file("kubeconfig"), "--leader-elect=false", "--secure-port=0",
			"--profiling=false",
			"--root-ca-file=" + c.file("apiserver/apiserver.crt"), "--controllers=" + strings.Join(controllers, ",")}
	case Scheduler:
		return []string{"--config=" + c.file("scheduler.yaml"), "--secure-port=0", "--profiling=false"}
	case Containerd:
		return []string{"--config=" + c.file("containerd.toml")}
	case Kubelet:
		return []string{"--config=" + c.file("kubelet.yaml"), "--kubeconfig=" + c.file("kubeconfig"),
			"--hostname-override=" + Node,
			"--node-ip=" + NodeIP, "--root-dir=" + KubeletRoot, "--cert-dir=" + c.file("kubelet")}
	}
	panic("unknown component " + string(name))
}

// serviceAccountKey returns a new private key in PEM format, without which the apiserver does not start.
func serviceAccountKey() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})), nil
}
