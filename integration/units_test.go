package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// cannotTry is the exit code of scripts/systemd.sh if the host has no systemd, or systemd cannot run in namespaces.
const cannotTry = 77

// The units of contrib/systemd, under a real systemd.
func TestUnits(t *testing.T) {
	w := newWorld(t)
	files := sample("units")
	files["README.md"] = gittest.File{Data: []byte("# units\n")}
	w.commit(w.repo("r.git", object.SHA1), files)
	for _, dir := range []string{base, w.root} { // so that the user that the script runs commands as can enter it
		w.check(os.Chmod(dir, 0o755))
	}
	dir := w.place("systemd")
	w.check(os.Mkdir(dir, 0o755))
	cmd := exec.Command("../scripts/systemd.sh", binary, w.serve(gittest.ServerOptions{}).URL("r.git"), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case err == nil:
	case cmd.ProcessState.ExitCode() == cannotTry && os.Getenv("CI") == "":
		t.Skip(strings.TrimSpace(string(out[strings.LastIndexByte(strings.TrimSpace(string(out)), '\n')+1:])))
	default:
		t.Error(err)
	}
	w.check(os.RemoveAll(filepath.Join(dir, "lib")))
}

func TestInstall(t *testing.T) {
	w := newWorld(t)
	list := func(root string) string {
		out, err := exec.Command("find", root, "!", "-type", "d", "-printf", "%P %l\n").CombinedOutput()
		if err != nil {
			t.Fatalf("run the script of the units: %v: %s", err, out)
		}
		return string(out)
	}
	root := w.place("root")
	install := func(target string) {
		t.Helper()
		// The binaries are built elsewhere, because make would write into the checkout.
		cmd := exec.Command("make", "-s", "-C", "..", "-o", "build", target, "DESTDIR="+root, "PREFIX=/usr", "BIN="+base)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	for _, program := range []string{"artifactfs-fsmonitor", "artifactfs-csi"} {
		w.check(os.WriteFile(filepath.Join(base, program), nil, 0o755))
		defer os.Remove(filepath.Join(base, program))
	}
	w.check(os.MkdirAll(filepath.Join(root, "usr/share/artifactfs"), 0o755))
	w.check(os.WriteFile(filepath.Join(root, "usr/share/artifactfs/mine"), nil, 0o644))
	install("install")
	got := list(root)
	for _, want := range []string{
		"usr/bin/artifactfs \n", "usr/bin/artifactfs-server \n", "usr/bin/artifactfs-fsmonitor \n", "usr/bin/artifactfs-csi \n",
		"sbin/mount.fuse.artifactfs /usr/bin/artifactfs\n", "sbin/umount.fuse.artifactfs /usr/bin/artifactfs\n",
		"usr/lib/systemd/system/artifactfs.service \n", "usr/lib/systemd/system/artifactfs-server.service \n",
		"usr/lib/systemd/user/artifactfs.service \n", "usr/share/artifactfs/container/artifactfs-hook \n",
		"usr/share/artifactfs/systemd/srv-app.mount \n", "usr/share/bash-completion/completions/artifactfs \n",
		"usr/share/man/man1/artifactfs.1 \n", "usr/share/man/man1/artifactfs-session-log.1 \n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("make install did not install %q:\n%s", want, got)
		}
	}
	unit := must[[]byte](w)(os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/artifactfs.service")))
	if !strings.Contains(string(unit), "\nExecStart=/usr/bin/artifactfs daemon --restore\n") ||
		strings.Contains(string(unit), "@BINDIR@") {
		t.Errorf("the installed unit is wrong:\n%s", unit)
	}
	install("uninstall")
	if got := list(root); got != "usr/share/artifactfs/mine \n" {
		t.Errorf("make uninstall left\n%s", got)
	}
	share := filepath.Join(root, "usr/share/artifactfs")
	w.check(os.Remove(filepath.Join(share, "mine")))
	install("uninstall")
	if _, err := os.Stat(share); err == nil {
		t.Errorf("make uninstall left the empty directory %s", share)
	}
}

// A program without the server runs the program artifactfs-server beside it, and works without it.
func TestProgramWithoutServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alone := filepath.Join(w.place("alone"), "artifactfs")
	twice := filepath.Join(w.place("twice"), "artifactfs")
	for _, program := range []string{alone, twice, twice + "-server"} {
		w.check(os.MkdirAll(filepath.Dir(program), 0o755))
		w.check(os.Link(binary, program))
	}
	for _, c := range []struct {
		program, args string
		code          int
		out           []string // parts of the output; after "!" those that it must not have
	}{
		{binary, "serve --help", 0, []string{"Serve runs a git server", "--data DIR"}},
		{binary, "--state /nowhere help ui", 0, []string{"Ui serves a page"}},
		{binary, "--help --all", 0, []string{"  relay ", "  serve ", "  mount "}},
		{binary, "serve --data x --listen y", 2, []string{`artifactfs: serve: invalid address "y" for --listen`}},
		{binary, "relai", 2, []string{"did you mean relay?"}},
		{alone, "--help --all", 0, []string{"  mount ", "!  serve ", "!  relay "}},
		{alone, "help mount", 0, []string{"--session NAME"}},
		{alone, "serve --data x", 1, []string{
			"artifactfs: run serve: the program artifactfs-server, which has this command, is not installed",
			"copy artifactfs-server of the same version into " + filepath.Dir(alone)}},
		{alone, "ui --json", 1, []string{`{"error":{"code":`}},
		{alone, "--state /nowhere/at/all --json relay --listen x", 1, []string{"is not installed", `{"error":{"code":`}},
		{alone, "help serve", 0, []string{"It is not installed beside this program"}},
		{alone, "--version", 0, []string{"artifactfs "}},
		{twice, "serve", 1, []string{"run serve: the program artifactfs-server"}},
		{twice, "--help", 0, []string{"  mount "}},
		{alone, "nothing", 2, []string{`unknown command "nothing"`}},
	} {
		out, err := exec.Command(c.program, strings.Fields(c.args)...).CombinedOutput()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else {
			w.check(err)
		}
		if code != c.code {
			t.Errorf("%s %s: exit code %d, want %d:\n%s", c.program, c.args, code, c.code, out)
		}
		for _, part := range c.out {
			part, absent := strings.CutPrefix(part, "!")
			if strings.Contains(string(out), part) == absent {
				t.Errorf("%s %s: %q is in the output: %v:\n%s", c.program, c.args, part, !absent, out)
			}
		}
	}
}
