package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const tableFeatures = "pods of special kinds"

// expect runs commands in a pod, and compares their output.
func (w *world) expect(t *testing.T, pod string, commands ...[2]string) {
	t.Helper()
	for _, c := range commands {
		got, err := w.exec(pod, c[0])
		if err != nil || got != c[1] {
			t.Errorf("pod %s: %s: got %q (%v), want %q", pod, c[0], got, err, c[1])
		}
	}
}

// single starts one pod, waits until it is ready, and removes it at the end of the test.
func (w *world) single(t *testing.T, p pod) {
	t.Helper()
	if p.command == "" {
		p.command = "sleep 1000000"
	}
	check(t, w.Apply(p.yaml()))
	t.Cleanup(func() { w.remove(t, "app="+p.name) })
	check(t, w.WaitReady(t.Context(), "default", "app="+p.name, 1))
}

func TestNonRoot(t *testing.T) {
	w := start(t)
	base, sessions, _ := repositories(t)
	w.single(t, pod{name: "plain", image: nodeImage,
		spec:      "  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}\n",
		container: "    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n",
		attributes: map[string]string{"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git"),
			"uid": "1000"}})
	w.expect(t, "plain",
		[2]string{"id -u; id -G; stat -c '%u %g %a' /work /work/dir00", "1000\n1000 2000\n1000 2000 775\n1000 2000 775"},
		[2]string{"touch /file 2>&1; echo text >/work/dir00/new && stat -c '%u %g' /work/dir00/new",
			"touch: /file: Read-only file system\n1000 1000"},
		[2]string{"cd /work && export HOME=/work && git status --porcelain", "?? dir00/new"},
		[2]string{"cd /work && git add . && git -c user.name=n -c user.email=n@example.org commit -qm new && git log --format=%s -1", "new"},
		[2]string{"cd /work && git status --porcelain && git show --stat --format= | tail -1",
			"1 file changed, 1 insertion(+)"})
	if !t.Failed() {
		summary.add(t, tableFeatures,
			"user 1000, fsGroup 2000, readOnlyRootFilesystem, no capabilities: reads, writes, git status and commit work")
	}
}

func TestSubPathAndRestart(t *testing.T) {
	w := start(t)
	base, sessions, _ := repositories(t)
	w.single(t, pod{name: "part", mount: ", subPath: dir03",
		attributes: map[string]string{"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git")}})
	w.expect(t, "part", [2]string{"ls /work | wc -l; echo x >/work/new; ls /work | wc -l", "50\n51"})
	pid, err := w.ContainerPID("default", "part", "main")
	check(t, err)
	check(t, unix.Kill(pid, unix.SIGKILL))
	check(t, w.Wait(t.Context(), "the container runs again", func() error {
		now, err := w.ContainerPID("default", "part", "main")
		if err == nil && now == pid {
			err = errors.New("it has the same process")
		}
		return err
	}))
	w.expect(t, "part", [2]string{"cat /work/new; ls /work | wc -l", "x\n51"})
	worker, _, err := w.daemonPIDs()
	check(t, err)
	check(t, unix.Kill(worker, unix.SIGKILL))
	w.expect(t, "part", [2]string{"cat /work/new; ls /work | wc -l", "x\n51"})
	if !t.Failed() {
		summary.add(t, tableFeatures,
			"subPath: the directory is visible, also after a restart of the container and after a takeover")
	}
}

const claimYAML = `apiVersion: v1
kind: PersistentVolume
metadata: {name: app-session}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  csi:
    driver: csi.artifactfs
    volumeHandle: app-session
    volumeAttributes: {remote: %q, sessionRemote: %q}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: app-session}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: app-session
  resources: {requests: {storage: 1Gi}}
`

func TestPersistentVolume(t *testing.T) {
	w := start(t)
	base, sessions, dir := repositories(t)
	check(t, w.Apply(fmt.Sprintf(claimYAML, base.URL("app.git"), sessions.URL("app.git"))))
	t.Cleanup(func() {
		_, err := w.Kubectl("delete", "pvc,pv", "app-session")
		check(t, err)
	})
	claim := "persistentVolumeClaim: {claimName: app-session}"
	t.Run("pods", func(t *testing.T) {
		w.single(t, pod{name: "one", volume: claim})
		w.single(t, pod{name: "two", volume: claim})
		w.expect(t, "one", [2]string{"echo text >/work/shared; ls /work/dir01 | wc -l", "50"})
		w.expect(t, "two", [2]string{"cat /work/shared; echo more >>/work/shared", "text"})
		w.expect(t, "one", [2]string{"cat /work/shared", "text\nmore"})
		w.stats(t, "two")
		w.remove(t, "app=one")
		w.expect(t, "two", [2]string{"cat /work/shared", "text\nmore"})
	})
	check(t, w.Wait(t.Context(), "all volumes are gone", w.volumesLeft))
	ref := "refs/afs/j/app-session/main/000001"
	if got, err := gittest.Git(t.Context(), filepath.Join(dir, "sessions/app.git"), "show", ref+":shared"); err != nil ||
		got != "text\nmore" {
		t.Errorf("file in the checkpoint %s: got %q (%v)", ref, got, err)
	}
	if !t.Failed() {
		summary.add(t, tableFeatures,
			"persistent volume, two pods at once: each sees the writes of the other; the session is pushed after the second has ended")
	}
}

// stats tests what the driver reports of the persistent volume of a pod.
func (w *world) stats(t *testing.T, name string) {
	t.Helper()
	uid, err := w.Kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}")
	check(t, err)
	path := cluster.KubeletRoot + "/pods/" + uid + "/volumes/kubernetes.io~csi/app-session/mount"
	conn, err := grpc.NewClient("unix://"+cluster.KubeletRoot+"/plugins/csi.artifactfs/csi.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer conn.Close()
	node := csi.NewNodeClient(conn)
	stats, err := node.NodeGetVolumeStats(t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: "app-session", VolumePath: path})
	check(t, err)
	health, err := node.NodeGetVolumeHealth(t.Context(),
		&csi.NodeGetVolumeHealthRequest{VolumeId: "app-session", VolumePublishPath: path})
	check(t, err)
	if len(stats.Usage) != 2 || stats.Usage[0].Used < 10 || stats.Usage[1].Used < 1000 ||
		len(health.VolumeHealth.HealthStatuses) > 0 {
		t.Errorf("statistics and health of the volume: got %v and %v", stats, health)
		return
	}
	bytes, inodes := stats.Usage[0], stats.Usage[1]
	summary.add(t, tableFeatures,
		"volume statistics: %d bytes of changes on a disk of %d bytes, %d files; no problem of health",
		bytes.Used, bytes.Total, inodes.Used)
}

// TestEvents tests the texts that users see if a volume cannot be mounted, and that the pod starts when the cause is
// gone.
func TestEvents(t *testing.T) {
	w := start(t)
	base, _, _ := repositories(t)
	const token = "s3cr3t-token"
	base.Inject(gittest.Fault{Kind: gittest.RequireAuth, Pass: token})
	secret := func(token string) error {
		return w.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: git-token}\nstringData: {token: " + token + "}\n")
	}
	check(t, secret("wrong-token"))
	url := base.URL("app.git")
	for _, p := range []struct {
		pod
		want string
	}{
		{pod{name: "wrongtoken", secret: "git-token", attributes: map[string]string{"remote": url}}, "check the keys token"},
		{pod{name: "notoken", attributes: map[string]string{"remote": url}}, "Unauthenticated"},
		{pod{name: "unknownattribute", attributes: map[string]string{"remote": url, "depth": "1"}},
			`unknown attribute \"depth\"`},
		{pod{name: "unknownrepository", secret: "good-token", attributes: map[string]string{"remote": base.URL("none.git")}},
			"NotFound"},
		{pod{name: "unknownref", secret: "good-token", attributes: map[string]string{"remote": url, "ref": "none"}}, "none"},
		{pod{name: "nohost", attributes: map[string]string{"remote": "http://10.88.0.1:1/app.git"}}, "Unavailable"},
	} {
		check(t, w.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: good-token}\nstringData: {token: "+token+"}\n"))
		p.command = "sleep 1000000"
		check(t, w.Apply(p.yaml()))
		text := ""
		check(t, w.Wait(t.Context(), "there is an event of the pod "+p.name, func() (err error) {
			text, err = w.Kubectl("get", "events", "--field-selector", "reason=FailedMount,involvedObject.name="+p.name, "-o",
				"jsonpath={.items[0].message}")
			if err == nil && text == "" {
				err = errors.New("there is none")
			}
			return err
		}))
		summary.add(t, "events (FailedMount)", "%s: %s", p.name, text)
		if !strings.Contains(text, strings.ReplaceAll(p.want, `\"`, `"`)) {
			t.Errorf("event of the pod %s: %q, want %q in it", p.name, text, p.want)
		}
		if strings.Contains(text, token) || strings.Contains(text, "wrong-token") {
			t.Errorf("event of the pod %s contains a token: %q", p.name, text)
		}
	}
	check(t, secret(token))
	check(t, w.WaitReady(t.Context(), "default", "app=wrongtoken", 1))
	w.expect(t, "wrongtoken", [2]string{"ls /work/dir01 | wc -l", "50"})
	for _, name := range []string{"wrongtoken", "notoken", "unknownattribute", "unknownrepository",
		"unknownref", "nohost"} {
		w.remove(t, "app="+name)
	}
	check(t, w.Wait(t.Context(), "all volumes are gone", w.volumesLeft))
	if left, _ := filepath.Glob(stateDir + "/csi/*"); len(left) > 0 {
		text, _ := os.ReadFile(left[0])
		t.Errorf("records of volumes that no pod has: %q, the first: %s", left, text)
	}
}

// TestHealth tests that a volume whose session cannot be pushed is reported.
func TestHealth(t *testing.T) {
	w := start(t)
	base, sessions, _ := repositories(t)
	w.single(t, pod{name: "ill", attributes: map[string]string{
		"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git"), "sessionPolicy": "interval=2s"}})
	sessions.Down()
	t.Cleanup(func() { check(t, sessions.Up()) }) // before the pod is removed
	w.expect(t, "ill", [2]string{"echo text >/work/new; cat /work/new", "text"})
	summary.add(t, "events (VolumeConditionAbnormal)", "%s", w.awaitEvent(t, "VolumeConditionAbnormal", "ill"))
}

// awaitEvent waits for an event with a reason about an object, and returns its message.
func (w *world) awaitEvent(t *testing.T, reason, object string) (text string) {
	t.Helper()
	check(t, w.Wait(t.Context(), "there is an event "+reason+" about "+object, func() (err error) {
		text, err = w.Kubectl("get", "events", "--field-selector", "reason="+reason+",involvedObject.name="+object, "-o",
			"jsonpath={.items[0].message}")
		if err == nil && text == "" {
			err = errors.New("there is none")
		}
		return err
	}))
	return text
}
