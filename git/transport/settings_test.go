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

// configuration returns settings of one line each, "section.key=value".
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

func TestRetryAfter(t *testing.T) {
	now := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-7": 0, "x": 0, "99999999999999": 0, "999999999": maxRetryWait,
		"Thu, 02 Jan 2020 03:04:35 GMT": 30 * time.Second, "Thu, 02 Jan 2020 03:04:00 GMT": 0} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("Retry-After %q: got %v, want %v", value, got, want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for n := range 70 {
		if d := backoff(n, 0); d < backoffFirst/2 || d > backoffMost {
			t.Errorf("wait before attempt %d: got %v", n, d)
		}
	}
	if d := backoff(0, time.Minute); d < time.Minute {
		t.Errorf("wait for Retry-After of a minute: got %v", d)
	}
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
