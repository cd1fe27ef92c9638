package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// job is a run of the checkout action, as a runner starts it.
type job struct {
	w                     *world
	workspace, repository string
	state, output         string // files that the action writes for the runner
	env                   []string
}

// newJob returns a job for a repository of the server at url.
func (w *world) newJob(url, repository, sha string) *job {
	w.Helper()
	j := &job{w: w, workspace: w.place("workspace"), repository: repository}
	j.state, j.output = j.workspace+".state", j.workspace+".output"
	for _, file := range []string{j.state, j.output} {
		w.check(os.WriteFile(file, nil, 0o600))
	}
	w.check(os.MkdirAll(j.workspace, 0o755))
	j.env = []string{"PATH=" + base + ":" + os.Getenv("PATH"), "HOME=" + w.root, "ARTIFACTFS_STATE=" + w.state,
		"GITHUB_WORKSPACE=" + j.workspace,
		"GITHUB_REPOSITORY=" + repository, "GITHUB_SHA=" + sha, "GITHUB_SERVER_URL=" + strings.TrimSuffix(url, "/"),
		"GITHUB_RUN_ID=17",
		"GITHUB_RUN_ATTEMPT=2", "GITHUB_JOB=build", "GITHUB_STATE=" + j.state, "GITHUB_OUTPUT=" + j.output,
		"GITHUB_ACTIONS=true",
		"INPUT_PATH=.", "INPUT_KEEP=true", "INPUT_PREFETCH=none", "INPUT_REPOSITORY=" + repository}
	return j
}

// run runs main or post, with further variables. It uses node if it is installed, as a runner does.
func (j *job) run(step string, env ...string) result {
	j.w.Helper()
	action := must[string](j.w)(filepath.Abs("../contrib/checkout-action"))
	args := []string{"sh", filepath.Join(action, "checkout.sh"), step}
	if node, err := exec.LookPath("node"); err == nil {
		args = []string{node, filepath.Join(action, step+".js")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.WaitDelay = append(append([]string{}, j.env...), env...), 10*time.Second
	if args[0] == "sh" { // what step.js does
		for _, v := range env {
			name, value, _ := strings.Cut(v, "=")
			cmd.Env = append(cmd.Env, strings.ReplaceAll(name, "-", "_")+"="+value)
		}
	}
	for line := range strings.Lines(string(must[[]byte](j.w)(os.ReadFile(j.state)))) {
		cmd.Env = append(cmd.Env, "STATE_"+strings.TrimSuffix(line, "\n")) // what the runner does for post
	}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		j.w.Fatal(err)
	}
	return result{args, string(out), "", cmd.ProcessState.ExitCode()}
}

// out returns an output of the action.
func (j *job) out(name string) (value string) {
	for line := range strings.Lines(string(must[[]byte](j.w)(os.ReadFile(j.output)))) {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			value = strings.TrimSuffix(v, "\n")
		}
	}
	return value
}

// The checkout action mounts the commit of a run at the workspace, unmounts it at the end, and keeps the changes in a
// session that no later run resumes.
func TestCheckoutAction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.check(os.MkdirAll(filepath.Join(w.repos, "team"), 0o755))
	r := w.repo("team/app.git", object.SHA1)
	first := w.commit(r, map[string]gittest.File{"a": {Data: []byte("first\n")}})
	second := w.commit(r, map[string]gittest.File{"a": {Data: []byte("second\n")}})
	url := strings.TrimSuffix(w.serve(gittest.ServerOptions{}).URL("team/app.git"), "/team/app.git")

	j := w.newJob(url, "team/app.git", first.String())
	got := j.run("main", "INPUT_FETCH-DEPTH=1", "INPUT_TOKEN=hunter2")
	if got.code != 0 || !strings.Contains(got.stdout, "::add-mask::hunter2") ||
		!strings.Contains(got.stdout, "fetch-depth 1 is ignored") {
		t.Fatalf("main: got (%d)\n%s", got.code, got.stdout)
	}
	if text := must[[]byte](w)(os.ReadFile(filepath.Join(j.workspace, "a"))); string(text) != "first\n" {
		t.Errorf("file in the workspace: got %q", text)
	}
	if j.out("commit") != first.String() || j.out("dir") != j.workspace ||
		!strings.HasPrefix(j.out("session"), "ci-17-2-build-") {
		t.Errorf("outputs: got commit %q, dir %q, session %q", j.out("commit"), j.out("dir"), j.out("session"))
	}
	w.check(os.WriteFile(filepath.Join(j.workspace, "made"), nil, 0o644))
	if got := j.run("post"); got.code != 0 {
		t.Errorf("post: got (%d)\n%s", got.code, got.stdout)
	}
	if mounts := mountsBelow(j.workspace); len(mounts) > 0 {
		t.Errorf("mounts after the job: %v", mounts)
	}
	if list := w.ok("session", "list"); !strings.Contains(list, j.out("session")) {
		t.Errorf("sessions after the job:\n%s\nwant %s", list, j.out("session"))
	}

	// The next run on the same runner is clean, although a step of it fails and leaves a process behind. Its changes are
	// not kept.
	next := w.newJob(url, "team/app.git", second.String())
	next.workspace = j.workspace
	next.env = append(next.env, "GITHUB_WORKSPACE="+j.workspace, "GITHUB_RUN_ID=18", "INPUT_KEEP=false", "INPUT_PATH=sub")
	if got := next.run("main"); got.code != 0 {
		t.Fatalf("main of the next run: got (%d)\n%s", got.code, got.stdout)
	}
	dir := filepath.Join(j.workspace, "sub")
	if got := w.git(dir, "status", "--porcelain"); got != "" || next.out("dir") != dir {
		t.Errorf("git status of the next run: got %q in %s", got, next.out("dir"))
	}
	w.check(os.WriteFile(filepath.Join(dir, "made"), nil, 0o644))
	left := exec.Command("sleep", "1000")
	left.Dir = dir
	w.check(left.Start())
	if got := next.run("post"); got.code != 0 {
		t.Errorf("post of the next run: got (%d)\n%s", got.code, got.stdout)
	}
	left.Process.Kill()
	left.Wait()
	if list := w.ok("session", "list"); strings.Contains(list, "ci-18-") {
		t.Errorf("sessions after the next run:\n%s\nwant none of it", list)
	}

	// A read-only checkout of a branch of another repository.
	other := w.newJob(url, "team/other.git", first.String())
	if got := other.run("main", "INPUT_REPOSITORY=team/app.git", "INPUT_REF=main",
		"INPUT_READ-ONLY=true"); got.code != 0 || other.out("commit") != second.String() {
		t.Errorf("checkout of another repository: got (%d) commit %s\n%s", got.code, other.out("commit"), got.stdout)
	}
	if got := other.run("post"); got.code != 0 {
		t.Errorf("post after a read-only checkout: got (%d)\n%s", got.code, got.stdout)
	}

	for _, bad := range [][]string{{"INPUT_REPOSITORY=team/none.git"}, {"INPUT_PATH=../out"}, {"INPUT_REPOSITORY=-x/y"},
		{"INPUT_REPOSITORY=x"},
		{"INPUT_PROGRAM=artifactfs-none"}, {"INPUT_REF=no-such-branch"}} {
		failed := w.newJob(url, "team/app.git", first.String())
		if got := failed.run("main", bad...); got.code == 0 || !strings.Contains(got.stdout, "::error title=") {
			t.Errorf("main with %v: got (%d)\n%s", bad, got.code, got.stdout)
		}
		if got := failed.run("post", bad...); got.code != 0 {
			t.Errorf("post after a main that failed: got (%d)\n%s", got.code, got.stdout)
		}
	}
}

// devBox runs a script as the tooling of dev containers would: in a container with a copy of the feature, where it is
// root.
const devBox = `
exec unshare --mount --pid --fork --kill-child --propagation private sh -euc '
feature=$1 program=$2 script=$3
root=$(mktemp -d)
mount -t tmpfs tmpfs $root
cp "$script" $root/script; cp -r "$feature" $root/feature; cp "$program" $root/feature/artifactfs
cd $root
for d in usr bin sbin lib lib64; do
	if [ -L /$d ]; then cp -a /$d .; elif [ -d /$d ]; then mkdir $d; mount --rbind -o ro /$d $d; fi
done
mount -t tmpfs tmpfs usr/local
mkdir -p proc dev tmp etc old var/lib home/dev
mount -t proc proc proc
for n in null urandom zero fuse; do touch dev/$n; mount --bind /dev/$n dev/$n; done
printf "root:x:0:0::/:/bin/sh\ndev:x:1234:1235::/home/dev:/bin/sh\n" >etc/passwd
pivot_root . old; umount -l /old; rmdir /old
cd /
exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp LC_ALL=C GIT_CONFIG_NOSYSTEM=1 sh -c "exec 2>&1; . /script"
' sh "$@"`

// The Dev Container feature installs the program, and mounts the workspace for the user of the container.
func TestDevContainerFeature(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	program := must[[]byte](w)(os.ReadFile(binary))
	script := filepath.Join(w.root, "script")
	w.check(os.WriteFile(script, fmt.Appendf(nil, `
cd /feature
mv artifactfs /program
! REMOTE=x ./install.sh || echo "installed without a program"
! URL=file:///program ./install.sh || echo "installed without a hash"
! URL=file:///program SHA256=%064d ./install.sh || echo "installed with a wrong hash"
URL=file:///program SHA256=%x ./install.sh
mkdir -p /bundle/bin; cp /program /bundle/bin/artifactfs; tar -C / -cf /bundle.tar bundle
export REMOTE=%s DIR="/work/it's here" PREFETCH=none SESSION=dev _REMOTE_USER=dev
URL=file:///bundle.tar SHA256=$(sha256sum /bundle.tar | cut -d" " -f1) ./install.sh
cd /
rm -r /feature
unset REMOTE DIR PREFETCH SESSION _REMOTE_USER
export ARTIFACTFS_SESSION=mine
/usr/local/share/artifactfs/artifactfs-workspace setpriv --reuid 1234 --regid 1235 --clear-groups sh -euc '
	cd "/work/it'"'"'s here"; env | grep ARTIFACTFS_ || true
	git status --short; git log --oneline | wc -l; echo x >new; stat -c %%u:%%g new known .git; git status --short' | grep -v ^mounted
artifactfs list | grep -c mine
artifactfs unmount --all >/dev/null 2>&1
mv /dev/fuse /dev/none 2>/dev/null || umount /dev/fuse && rm /dev/fuse
/usr/local/share/artifactfs/artifactfs-workspace echo started
`, 0, sha256.Sum256(program), url), 0o644))
	got := w.script(devBox, must[string](w)(filepath.Abs("../contrib/devcontainer")), binary, script)
	want := `artifactfs: install feature: copy the program artifactfs beside install.sh, or set the options url and sha256
artifactfs: install feature: the option url requires the option sha256
sha256sum: WARNING: 1 computed checksum did NOT match
artifactfs: install feature: file:///program does not have the hash of the option sha256
5
1234:1235
1234:1235
1234:1235
?? new
1
artifactfs: mount /work/it's here: /dev/fuse is missing
hint: add "runArgs": ["--device=/dev/fuse"] to devcontainer.json
started
`
	if got.code != 0 || got.stdout != want {
		t.Errorf("feature: got (%d)\n%s%s\nwant\n%s", got.code, got.stdout, got.stderr, want)
	}
}
