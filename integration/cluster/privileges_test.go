package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// change is a change of the deployment that removes a privilege.
type change struct {
	name     string
	old, new string // part of deploy/kubernetes/artifactfs.yaml and its replacement; an empty old: no change
	again    [2]string
	want     string // regular expression of what then happens
}

// volumeLine matches a host path and its type.
func hostPath(name, path, kind string) string {
	return "        - name: " + name + "\n          hostPath: {path: " + path + ", type: " + kind + "}\n"
}

func empty(name string) string { return "        - name: " + name + "\n          emptyDir: {}\n" }

const (
	privileged = "privileged: true #"
	command    = "exec $bin/artifactfs daemon"
)

// bounded returns a change that runs the daemon with some capabilities only.
func bounded(name, capabilities, want string) change {
	return change{name: name, old: command, new: "exec " + setpriv + " --bounding-set=-all" + capabilities +
		" --inh-caps=-all" + capabilities +
		strings.TrimPrefix(command, "exec"), want: want}
}

var changes = []change{
	{name: "nothing", want: "^works$"},
	{name: "privileged of the daemon", old: privileged, new: "privileged: false #", want: "Bidirectional"},
	{name: "privileged, Bidirectional; CAP_SYS_ADMIN added", old: privileged, new: "capabilities: {add: [SYS_ADMIN]} #",
		again: [2]string{", mountPropagation: Bidirectional", ""}, want: "."},
	bounded("capabilities of the daemon but SYS_ADMIN", ",+sys_admin", "dubious ownership"),
	bounded("capabilities of the daemon but SYS_ADMIN, SETUID, SETGID", ",+sys_admin,+setuid,+setgid", "."),
	bounded("capabilities of the daemon but these and DAC_OVERRIDE, CHOWN, FOWNER, SYS_PTRACE",
		",+sys_admin,+setuid,+setgid,+dac_override,+chown,+fowner,+sys_ptrace", "."),
	{name: "hostPID", old: "hostPID: true", new: "hostPID: false", want: "^works$"},
	{name: "hostPath /var/lib/artifactfs", old: hostPath("state", "/var/lib/artifactfs", "DirectoryOrCreate"),
		new:  empty("state"),
		want: "after an update"},
	{name: "hostPath /run/artifactfs of artifactfs-node",
		old: "      volumes:\n" + hostPath("state", "/var/lib/artifactfs", "DirectoryOrCreate") +
			hostPath("run", "/run/artifactfs", "DirectoryOrCreate"), new: "      volumes:\n" +
			hostPath("state", "/var/lib/artifactfs", "DirectoryOrCreate") + empty("run"), want: "."},
	{name: "hostPath /var/lib/kubelet", old: hostPath("kubelet", "/var/lib/kubelet", "Directory"),
		new: empty("kubelet"), want: "."},
	{name: "hostPath /var/lib/kubelet/plugins/csi.artifactfs", new: empty("plugin"),
		old: hostPath("plugin", "/var/lib/kubelet/plugins/csi.artifactfs", "DirectoryOrCreate"), want: "."},
	{name: "hostPath /var/lib/kubelet/plugins_registry", new: empty("registration"),
		old: hostPath("registration", "/var/lib/kubelet/plugins_registry", "DirectoryOrCreate"), want: "."},
}

// TestPrivileges removes privileges of the deployment one by one, and records what then fails.
func TestPrivileges(t *testing.T) {
	w := start(t)
	base, sessions, dir := repositories(t)
	defer func() {
		w.forget(t) // also what the changed deployments have left
	}()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			yaml := deployment(t)
			if c.old != "" {
				if strings.Count(yaml, c.old) != 1 {
					t.Fatalf("the deployment contains %q %d times, want once", c.old, strings.Count(yaml, c.old))
				}
				yaml = strings.Replace(yaml, c.old, c.new, 1)
			}
			if c.again[0] != "" {
				yaml = strings.ReplaceAll(yaml, c.again[0], c.again[1])
			}
			result := w.with(t, yaml, filepath.Join(dir, "sessions/app.git"), pod{name: "probe", image: nodeImage,
				spec: "  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}\n", command: "sleep 1000000",
				attributes: map[string]string{"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git"),
					"uid": "1000"}})
			summary.add(t, "without ... (privileges)", "%-80s %s", c.name, result)
			if !regexp.MustCompile(c.want).MatchString(result) {
				t.Errorf("without %s: got %q, want %q", c.name, result, c.want)
			}
		})
	}
}

// with applies a deployment, uses a pod in every way, and returns "works" or what failed first. The parameter repo is
// the path of the session remote, from which with removes all sessions.
func (w *world) with(t *testing.T, yaml, repo string, p pod) (result string) {
	t.Helper()
	_, err := w.Kubectl("delete", "daemonset", "-n", namespace, "--all")
	check(t, err)
	check(t, w.WaitGone(context.Background(), namespace, ""))
	if err := w.Apply(yaml); err != nil {
		_, text, _ := strings.Cut(err.Error(), "exit status 1: ")
		return "refused by Kubernetes: " + lastLine(text)
	}
	defer func() {
		_, err := w.Kubectl("delete", "pod", p.name, "--wait=false")
		check(t, err)
		if err := w.within(30*time.Second, func() error { return w.gone(p.name) }); err != nil {
			if result == "works" {
				result = "pod cannot be deleted: " + w.event(p.name)
			}
			_, err := w.Kubectl("delete", "pod", p.name, "--force", "--grace-period=0")
			check(t, err)
		}
		ref := "refs/afs/j/default-" + p.name + "-work/main/000001"
		if text, err := gittest.Git(context.Background(), repo, "show", ref+":new"); result == "works" &&
			(err != nil || text != "text") {
			result = fmt.Sprintf("session is not pushed: file in %s: %q (%v)", ref, text, err)
		}
		for _, ref := range strings.Fields(gittest.Must(t, repo, "for-each-ref", "--format=%(refname)", "refs/afs")) {
			gittest.Must(t, repo, "update-ref", "-d", ref)
		}
	}()
	_, err = w.Kubectl("delete", "events", "--all")
	check(t, err)
	check(t, w.Apply(p.yaml()))
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"pod does not start", func() error { return nil }},
		{"read", w.shell(p.name, "ls /work/dir03 | wc -l && cat /work/dir03/f* >/dev/null", "50")},
		{"write", w.shell(p.name, "echo text >/work/new && cat /work/new", "text")},
		{"git status", w.shell(p.name, "cd /work && HOME=/work git status --porcelain", "?? new")},
		{"search", w.shell(p.name, "grep -rl 'no such text' /work/dir* | wc -l", "0")},
		{"after a kill of the daemon", func() error {
			err := w.killContainer("artifactfs-node", "daemon")
			// the kernel may have a file in its cache, which can be read after the end of the mount, so write first
			if err == nil {
				err = w.shell(p.name, "echo text >/work/new && cat /work/new", "text")()
			}
			return err
		}},
		{"after an update of artifactfs-node", func() error {
			err := w.roll("artifactfs-node")
			if err == nil {
				err = w.shell(p.name, "echo text >/work/new && cat /work/new", "text")()
			}
			return err
		}},
	} {
		limit := 5 * time.Second
		do := step.do
		if step.name == "pod does not start" {
			limit, do = 25*time.Second, func() error {
				out, err := w.Kubectl("get", "pod", p.name, "-o", `jsonpath={.status.phase}`)
				if err == nil && out != "Running" {
					err = errors.New(w.event(p.name))
				}
				return err
			}
		}
		if err := w.within(limit, do); err != nil {
			_, text, found := strings.Cut(err.Error(), "exit status ")
			if !found {
				text = err.Error()
			}
			text = strings.ReplaceAll(text, "command terminated with exit code", "exit code")
			return step.name + ": " + strings.Join(strings.Fields(text[max(0, len(text)-400):]), " ")
		}
	}
	return "works"
}

// shell returns a function that runs a command in a pod.
func (w *world) shell(pod, command, want string) func() error {
	return func() error {
		got, err := w.exec(pod, command)
		if err == nil && want != "" && got != want {
			err = fmt.Errorf("%s: got %q, want %q", command, got, want)
		}
		return err
	}
}

// within repeats a check until it returns nil or the time has passed.
func (w *world) within(limit time.Duration, check func() error) (err error) {
	for end := time.Now().Add(limit); ; time.Sleep(300 * time.Millisecond) {
		if err = check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// gone returns an error while a pod exists.
func (w *world) gone(pod string) error {
	out, err := w.Kubectl("get", "pod", pod, "--ignore-not-found", "-o", "name")
	if err == nil && out != "" {
		err = errors.New("it exists")
	}
	return err
}

// event returns the newest warning about a pod, or the state of the containers of the deployment that do not run.
func (w *world) event(pod string) string {
	text, _ := w.Kubectl("get", "events", "--field-selector", "type=Warning,involvedObject.name="+pod, "-o",
		`jsonpath={.items[-1:].message}`)
	logs, _ := w.Kubectl("get", "pods", "-n", namespace, "-o",
		`jsonpath={range .items[*].status.containerStatuses[?(@.ready==false)]}{.name} does not run ({.state.waiting.reason}) {end}`)
	return strings.TrimSpace(logs + text)
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
