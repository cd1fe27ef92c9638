package transport

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// configuration returns settings with the one line "section.key=value".
func configuration(line string) endpoint.Settings {
	return endpoint.ParseSettings([]byte(strings.Replace(line, "=", "\n", 1) + "\x00"))
}

func TestSSHPrograms(t *testing.T) {
	for _, name := range []string{"GIT_SSH_COMMAND", "GIT_SSH", "GIT_SSH_VARIANT"} {
		t.Setenv(name, "")
	}
	argv := func(s endpoint.Settings) string {
		p := endpoint.NewSSHProgram(s, nil)
		return strings.Join(p.Argv(append(p.Options("22", 15*time.Second), "host")), " ")
	}
	const options = "-o SendEnv=GIT_PROTOCOL -o ConnectTimeout=15 -p 22 host"
	if got, want := argv(nil), "ssh "+options; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := argv(configuration("core.sshcommand=my ssh")), `sh -c my ssh "$@" my ssh `+options; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := argv(configuration("ssh.variant=simple")), "ssh host"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	t.Setenv("GIT_SSH", "/x/TortoisePlink.exe")
	if got, want := argv(nil), "/x/TortoisePlink.exe -batch -P 22 host"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPauseFits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if fits(ctx, 2*time.Minute) || !fits(ctx, time.Second) || fits(context.Background(), waitMost+1) {
		t.Error("fits is wrong for a wait within the deadline, beyond it, or longer than waitMost")
	}
}

func TestInsteadOf(t *testing.T) {
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	t.Setenv("GIT_CONFIG_COUNT", "2")
	t.Setenv("GIT_CONFIG_KEY_0", "url.https://127.0.0.1:1/.insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_0", "short")
	t.Setenv("GIT_CONFIG_KEY_1", "url.file://"+root+"/.insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_1", "shorter:")
	r := openRemote(t, "shorter:r", Options{})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if r.URL() != "shorter:r" {
		t.Errorf("URL = %q", r.URL())
	}
}
