package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// plugin is a process of `artifactfs docker-plugin`.
type plugin struct {
	w      *world
	socket string
	cmd    *exec.Cmd
}

// startPlugin starts the volume plugin at socket and waits until it answers. The process ends with the test.
func (w *world) startPlugin(socket string) *plugin {
	w.Helper()
	p := &plugin{w: w, socket: socket}
	p.start()
	w.Cleanup(p.kill)
	return p
}

func (p *plugin) start() {
	p.w.Helper()
	p.cmd = p.w.command(context.Background(), "docker-plugin", "--plugin-socket", p.socket, "--log-file", filepath.Join(p.w.root, "plugin.log"))
	p.w.check(p.cmd.Start())
	p.w.until("the plugin answers", func() bool {
		conn, err := net.Dial("unix", p.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// kill ends the process without a chance to clean up.
func (p *plugin) kill() {
	if p.cmd != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		p.cmd = nil
	}
}

// pluginReply has the fields of all replies.
type pluginReply struct {
	Mountpoint, Err string
	Implements      []string
	Capabilities    struct{ Scope string }
	Volume          struct{ Name, Mountpoint string }
	Volumes         []struct{ Name, Mountpoint string }
}

// ask sends a request, as dockerd does.
func (p *plugin) ask(what string, request any) pluginReply {
	p.w.Helper()
	client := http.Client{Timeout: commandTime, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.socket)
		}}}
	body := must[[]byte](p.w)(json.Marshal(request))
	r := must[*http.Response](p.w)(client.Post("http://plugin/"+what, "application/json", bytes.NewReader(body)))
	defer r.Body.Close()
	var out pluginReply
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
		p.w.Fatalf("reply to %s: %v", what, err)
	}
	if ok := r.StatusCode == http.StatusOK; ok != (out.Err == "") {
		p.w.Errorf("reply to %s: got status %d with the error %q", what, r.StatusCode, out.Err)
	}
	return out
}

// need sends a request that must succeed.
func (p *plugin) need(what string, request any) pluginReply {
	p.w.Helper()
	out := p.ask(what, request)
	if out.Err != "" {
		p.w.Fatalf("%s %v: %s", what, request, out.Err)
	}
	return out
}

type (
	volumeName struct{ Name string }
	volumeUse  struct{ Name, ID string }
	newVolume  struct {
		Name string
		Opts map[string]string
	}
)

// The volume plugin answers the requests of Docker: each can be repeated, volumes survive the plugin and the daemon, and a volume is not
// removed before its session is on its session remote.
func TestDockerPluginProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	sessions := must[string](w)(filepath.EvalSymlinks(w.root)) + "/sessions.git"
	server := w.serve(gittest.ServerOptions{})
	p := w.startPlugin(filepath.Join(w.root, "p.sock"))
	if got := p.need("Plugin.Activate", nil); len(got.Implements) != 1 || got.Implements[0] != "VolumeDriver" {
		t.Errorf("plugin implements %v, want VolumeDriver", got.Implements)
	}
	if got := p.need("VolumeDriver.Capabilities", nil); got.Capabilities.Scope != "local" {
		t.Errorf("scope of volumes: got %q, want local", got.Capabilities.Scope)
	}

	options := map[string]string{"remote": server.URL("app.git"), "sessionRemote": sessions, "prefetch": "none"}
	for _, bad := range []map[string]string{{}, {"remote": "x", "colour": "red"}, {"remote": "x", "readOnly": "perhaps"}} {
		if got := p.ask("VolumeDriver.Create", newVolume{"v", bad}); got.Err == "" {
			t.Errorf("volume with the options %v was created", bad)
		}
	}
	for _, bad := range []string{"", "../v", "a/b", ".v"} {
		if got := p.ask("VolumeDriver.Create", newVolume{bad, options}); got.Err == "" {
			t.Errorf("volume with the name %q was created", bad)
		}
	}
	p.need("VolumeDriver.Create", newVolume{"v", options})
	p.need("VolumeDriver.Create", newVolume{"v", options})
	if got := p.ask("VolumeDriver.Create", newVolume{"v", map[string]string{"remote": "other"}}); !strings.Contains(got.Err, "other options") {
		t.Errorf("create again with other options: got %q", got.Err)
	}
	if got := p.need("VolumeDriver.Get", volumeName{"v"}); got.Volume.Name != "v" || got.Volume.Mountpoint != "" {
		t.Errorf("volume before the first use: got %+v", got.Volume)
	}

	dir := p.need("VolumeDriver.Mount", volumeUse{"v", "one"}).Mountpoint
	if again := p.need("VolumeDriver.Mount", volumeUse{"v", "one"}).Mountpoint; again != dir {
		t.Errorf("mount again: got %s, want %s", again, dir)
	}
	if got := w.git(dir, "status", "--porcelain"); got != "" {
		t.Errorf("git status in the volume: got %q", got)
	}
	w.check(os.WriteFile(filepath.Join(dir, "work"), []byte("of the first container\n"), 0o644))
	p.kill()
	p.start()
	p.need("VolumeDriver.Mount", volumeUse{"v", "two"})
	p.need("VolumeDriver.Unmount", volumeUse{"v", "one"})
	p.need("VolumeDriver.Unmount", volumeUse{"v", "one"})
	if got := p.need("VolumeDriver.Path", volumeName{"v"}).Mountpoint; got != dir {
		t.Errorf("path while the second container runs: got %q, want %q", got, dir)
	}
	// A mount whose daemon died is mounted again for the next container.
	p.kill()
	w.killDaemon()
	p.start()
	p.need("VolumeDriver.Mount", volumeUse{"v", "three"})
	if text := must[[]byte](w)(os.ReadFile(filepath.Join(dir, "work"))); string(text) != "of the first container\n" {
		t.Errorf("file after the death of the daemon: got %q", text)
	}

	// The session remote is away: containers end, and the volume stays.
	w.until("the session remote exists", func() bool { return exists(sessions) })
	w.check(os.Rename(sessions, sessions+".away"))
	w.check(os.WriteFile(sessions, nil, 0o600))
	w.check(os.WriteFile(filepath.Join(dir, "work"), []byte("not pushed\n"), 0o644))
	p.need("VolumeDriver.Unmount", volumeUse{"v", "two"})
	p.need("VolumeDriver.Unmount", volumeUse{"v", "three"})
	if got := p.need("VolumeDriver.List", nil).Volumes; len(got) != 1 || got[0].Name != "v" || got[0].Mountpoint != "" {
		t.Errorf("volumes without containers: got %+v, want v, not mounted", got)
	}
	if got := p.ask("VolumeDriver.Remove", volumeName{"v"}); !strings.Contains(got.Err, "session") {
		t.Errorf("remove a volume whose session is not pushed: got %q, want an error about the session", got.Err)
	}
	w.check(os.Remove(sessions))
	w.check(os.Rename(sessions+".away", sessions))
	p.need("VolumeDriver.Remove", volumeName{"v"})
	p.need("VolumeDriver.Remove", volumeName{"v"})
	if got := p.need("VolumeDriver.List", nil).Volumes; len(got) != 0 {
		t.Errorf("volumes after the removal: got %+v", got)
	}
	if mounts := mountsBelow(w.root); len(mounts) > 0 {
		t.Errorf("mounts after the removal: %v", mounts)
	}
	p.kill()
	// Another host resumes the session.
	other := newWorld(t)
	at := other.place("m")
	other.ok("session", "resume", "v", "--session-remote", sessions, at)
	if text := must[[]byte](w)(os.ReadFile(filepath.Join(at, "work"))); string(text) != "not pushed\n" {
		t.Errorf("file of the volume on another host: got %q", text)
	}
}

// dockerd is a Docker daemon of this test.
type dockerd struct {
	w    *world
	dir  string
	cmd  *exec.Cmd
	text *bytes.Buffer // output of the daemon
}

// startDocker starts a Docker daemon whose files are below the directory of the test. It skips the test if there is none that works.
func (w *world) startDocker(t *testing.T) *dockerd {
	t.Helper()
	for _, name := range []string{"docker", "dockerd"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("SKIPPED: volumes of Docker are NOT tested: %v", err)
		}
	}
	d := &dockerd{w: w, dir: filepath.Join(w.root, "docker")}
	w.check(os.Mkdir(d.dir, 0o755))
	if err := d.start(); err != nil {
		t.Skipf("SKIPPED: volumes of Docker are NOT tested, because dockerd does not work here: %v\n%s", err, d.text)
	}
	t.Cleanup(func() {
		d.w.script(`docker "$1" ps -aq | xargs -r docker "$1" rm -f`, "-H=unix://"+d.dir+"/sock")
		d.end(syscall.SIGTERM)
		unix.Unmount(d.dir+"/data", unix.MNT_DETACH) // dockerd leaves its data directory bound to itself
	})
	// The image has nothing but directories: the programs are those of the host.
	image := filepath.Join(d.dir, "image")
	for _, name := range []string{"usr", "proc", "dev", "sys", "tmp", "etc", "work"} {
		w.check(os.MkdirAll(filepath.Join(image, name), 0o755))
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		w.check(os.Symlink("usr/"+name, filepath.Join(image, name)))
	}
	w.check(os.WriteFile(filepath.Join(image, "etc", "passwd"), []byte("root:x:0:0::/tmp:/bin/sh\n"), 0o644))
	if r := w.script(`tar -C "$1" -c . | docker -H unix://"$2"/sock import - box:1`, image, d.dir); r.code != 0 {
		t.Skipf("SKIPPED: volumes of Docker are NOT tested, because no image can be made: %s", r)
	}
	if r := d.docker("run", "--rm", "--network=none", "-v=/usr:/usr:ro", "box:1", "true"); r.code != 0 {
		t.Skipf("SKIPPED: volumes of Docker are NOT tested, because no container can be started: %s", r)
	}
	return d
}

func (d *dockerd) start() error {
	// A dockerd that was killed takes its containerd along, and the next one would wait for the process of this number.
	os.Remove(d.dir + "/exec/containerd/containerd.pid")
	d.text = &bytes.Buffer{}
	d.cmd = exec.Command("dockerd", "--data-root="+d.dir+"/data", "--exec-root="+d.dir+"/exec", "--host=unix://"+d.dir+"/sock",
		"--pidfile="+d.dir+"/pid", "--storage-driver=vfs", "--iptables=false", "--bridge=none")
	d.cmd.Stdout, d.cmd.Stderr = d.text, d.text
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	var last result
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = d.docker("version"); last.code == 0 {
			return nil
		}
	}
	d.end(syscall.SIGKILL)
	return fmt.Errorf("no answer: %s", last)
}

// end sends a signal to the daemon, and waits until it has ended.
func (d *dockerd) end(signal syscall.Signal) {
	if d.cmd != nil {
		d.cmd.Process.Signal(signal)
		d.cmd.Wait()
		d.cmd = nil
	}
}

// docker runs a command of Docker.
func (d *dockerd) docker(args ...string) result {
	return d.w.script(`exec docker "$@"`, append([]string{"-H=unix://" + d.dir + "/sock"}, args...)...)
}

// need runs a command of Docker that must succeed, and returns its output.
func (d *dockerd) need(args ...string) string {
	d.w.Helper()
	r := d.docker(args...)
	if r.code != 0 {
		d.w.Fatalf("docker %s: %s", strings.Join(args, " "), r)
	}
	return strings.TrimSpace(r.stdout)
}

// Containers of a real dockerd use mounts as volumes, without privileges and without a network, and the work survives containers, the
// plugin and dockerd.
func TestDockerVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	r := w.repo("other.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"only": {Data: []byte("in the other repository\n")}})
	server := w.serve(gittest.ServerOptions{})
	driver := filepath.Base(w.root) + fmt.Sprint(os.Getpid())
	d := w.startDocker(t)
	p := w.startPlugin("/run/docker/plugins/" + driver + ".sock")
	t.Cleanup(func() { os.Remove(p.socket) })
	box := []string{"--network=none", "-v=/usr:/usr:ro", "-e=GIT_CONFIG_NOSYSTEM=1", "-w=/work"}
	with := func(volume string, args ...string) []string {
		return append(append(append([]string{"run"}, args...), box...), "--mount="+volume, "box:1", "sh", "-euc")
	}

	named := "type=volume,src=v,volume-driver=" + driver + ",volume-opt=remote=" + server.URL("app.git") + ",dst=/work"
	want := w.git(w.clone(server.URL("app.git")), "log", "--oneline")
	got := d.need(append(with(named, "--rm"), `git status --short; git log --oneline; echo mine >new; git -c user.name=a -c user.email=b commit -qm x --allow-empty`)...)
	if got != strings.TrimSpace(want) {
		t.Errorf("git log in the container: got\n%s\nwant\n%s", got, want)
	}
	if got := d.need(append(with("type=volume,src=v,dst=/work", "--rm"), `git status --short; cat new; git log -1 --format=%s`)...); got != "?? new\nmine\nx" {
		t.Errorf("work of the first container in the second one: got %q", got)
	}

	// Two containers use the volume; one ends, and the plugin and dockerd are killed while the other one runs.
	d.need(append(with("type=volume,src=v,dst=/work", "-d", "--name=long", "--stop-signal=KILL"), `echo long >>new; exec sleep 1000`)...)
	w.until("the container has written", func() bool { return strings.Contains(d.need("exec", "long", "cat", "/work/new"), "long") })
	d.need(append(with("type=volume,src=v,dst=/work", "--rm"), `echo short >>new`)...)
	p.kill()
	p.start()
	if got := d.need("exec", "long", "cat", "/work/new"); got != "mine\nlong\nshort" {
		t.Errorf("file in the container that still runs: got %q", got)
	}
	d.end(syscall.SIGKILL)
	w.check(d.start())
	d.need("rm", "-f", "long")
	if got := d.need(append(with("type=volume,src=v,dst=/work", "--rm"), `cat new`)...); got != "mine\nlong\nshort" {
		t.Errorf("file after the death of dockerd: got %q", got)
	}

	// An anonymous volume of a read-only mount disappears with its container.
	anonymous := "type=volume,volume-driver=" + driver + ",volume-opt=remote=" + server.URL("other.git") + ",volume-opt=readOnly=true,dst=/work"
	if got := d.need(append(with(anonymous, "--rm"), `cat only; ! touch x 2>/dev/null`)...); got != "in the other repository" {
		t.Errorf("read-only volume: got %q", got)
	}
	if got := d.need("volume", "ls", "-q"); got != "v" {
		t.Errorf("volumes after the anonymous container: got %q, want v", got)
	}
	if r := d.docker("volume", "create", "-d="+driver, "-o=colour=red"); r.code == 0 || !strings.Contains(r.stderr, "colour") {
		t.Errorf("volume with an unknown option: got %s", r)
	}
	d.need("volume", "rm", "v")
	if mounts := mountsBelow(w.state); len(mounts) > 0 {
		t.Errorf("mounts after the removal of all volumes: %v", mounts)
	}
	// Without a session remote, the session of a removed volume stays on this host, and a volume of the same name resumes it.
	if got := d.need(append(with(named, "--rm"), `cat new`)...); got != "mine\nlong\nshort" {
		t.Errorf("file in a new volume of the same name: got %q", got)
	}
	d.need("volume", "rm", "v")
}
