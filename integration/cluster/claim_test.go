package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const provisionerImage = "cluster.test/csi-provisioner:1"

// provisioned starts the controller of deploy/kubernetes, and creates two StorageClasses.
func (w *world) provisioned(t *testing.T, remote, sessionRemote string) {
	t.Helper()
	check(t,
		w.Image(provisionerImage,
			map[string]string{"/csi-provisioner": filepath.Join(os.Getenv(cluster.Variable), "csi-provisioner")},
			"/csi-provisioner"))
	yaml := objects(t, "controller.yaml", map[string]string{"artifactfs:latest": nodeImage,
		"registry.k8s.io/sig-storage/csi-provisioner:v5.3.0": provisionerImage}, 2)
	// No kube-proxy implements the address of the service that pods connect to.
	const args = "          args:\n"
	if strings.Count(yaml, args) != 1 {
		t.Fatalf("controller.yaml contains %q %d times, want once", args, strings.Count(yaml, args))
	}
	yaml = strings.Replace(yaml, args, fmt.Sprintf("          env: [{name: KUBERNETES_SERVICE_HOST, value: %q}, "+
		"{name: KUBERNETES_SERVICE_PORT, value: %q}]\n", cluster.NodeIP, cluster.APIPort)+args, 1)
	check(t, w.Apply(yaml))
	for _, policy := range []string{"Delete", "Retain"} {
		check(t, w.Apply(fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.artifactfs
reclaimPolicy: %s
parameters: {remote: %q, sessionRemote: %q, session: "{namespace}-{pvc}"}
`, strings.ToLower(policy), policy, remote, sessionRemote)))
	}
	t.Cleanup(func() {
		_, err := w.Kubectl("delete", "storageclass", "delete", "retain")
		check(t, err)
		_, err = w.Kubectl("delete", "deployment", "-n", namespace, "artifactfs-controller")
		check(t, err)
	})
	check(t, w.WaitReady(t.Context(), namespace, "app=artifactfs-controller", 1))
}

// claimed returns the name of the volume of a claim, once the claim has one.
func (w *world) claimed(t *testing.T, claim string) (volume string) {
	t.Helper()
	check(t, w.Wait(t.Context(), "the claim "+claim+" has a volume", func() (err error) {
		out, err := w.Kubectl("get", "pvc", claim, "-o", "jsonpath={.status.phase} {.spec.volumeName}")
		phase, name, _ := strings.Cut(out, " ")
		if volume = name; err == nil && phase != "Bound" {
			events, _ := w.Kubectl("get", "events", "--field-selector", "involvedObject.name="+claim, "-o",
				"jsonpath={.items[*].message}")
			err = fmt.Errorf("its phase is %q; events: %s", phase, events)
		}
		return err
	}))
	return volume
}

// TestStorageClass is the life of claims: pods with a claim continue each other's work, and a claim that is deleted and
// created again continues the session, whatever the reclaim policy is.
func TestStorageClass(t *testing.T) {
	w := start(t)
	base, sessions, dir := repositories(t)
	w.provisioned(t, base.URL("app.git"), sessions.URL("app.git"))
	for _, class := range []string{"delete", "retain"} {
		claim := "claim-" + class
		p := pod{name: "p" + class, volume: "persistentVolumeClaim: {claimName: " + claim + "}"}
		create := func() (volume string) {
			check(t, w.Apply(fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Gi}}}
`, claim, class)))
			return w.claimed(t, claim)
		}
		volume := create()
		t.Cleanup(func() {
			_, err := w.Kubectl("delete", "pvc,pv", "--all", "--wait=false")
			check(t, err)
		})
		use := func(command, want string) {
			t.Helper()
			if !t.Run(class, func(t *testing.T) {
				w.single(t, p)
				w.expect(t, p.name, [2]string{command, want})
			}) {
				t.FailNow()
			}
		}
		use("echo one >/work/new; ls /work/dir01 | wc -l; cat /work/new", "50\none")
		use("cat /work/new; echo two >>/work/new", "one")
		_, err := w.Kubectl("delete", "pvc", claim)
		check(t, err)
		check(t, w.Wait(t.Context(), "the reclaim policy was applied", func() error {
			phase, err := w.Kubectl("get", "pv", volume, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
			if want := map[string]string{"delete": "", "retain": "Released"}[class]; err == nil && phase != want {
				err = fmt.Errorf("phase of the volume: %q, want %q", phase, want)
			}
			return err
		}))
		if again := create(); again == volume {
			t.Errorf("the new claim has the old volume %s", volume)
		}
		use("cat /work/new", "one\ntwo")
		ref := "refs/afs/j/default-" + claim + "/main/"
		if out := gittest.Must(t, filepath.Join(dir, "sessions/app.git"), "for-each-ref", ref); out == "" {
			t.Errorf("the session remote has no checkpoint below %s", ref)
		}
	}
	check(t, w.Apply("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: everywhere}\n"+
		"spec: {accessModes: [ReadWriteMany], storageClassName: delete, resources: {requests: {storage: 1Gi}}}\n"))
	text := w.awaitEvent(t, "ProvisioningFailed", "everywhere")
	if !strings.Contains(text, "a session is mounted on one node at a time") {
		t.Errorf("event of a claim with ReadWriteMany: %q", text)
	}
	if !t.Failed() {
		summary.add(t, tableFeatures,
			"StorageClass (external-provisioner): pods continue each other's work; a claim that was deleted (Delete, "+
				"Retain) and created again continues the session; ReadWriteMany: %s", text)
	}
}
