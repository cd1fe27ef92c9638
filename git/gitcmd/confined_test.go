package gitcmd

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// child returns the arguments with which git starts a shell script as a child process.
func child(script string) []string { return []string{"-c", "alias.child=!" + script, "child"} }

func TestConfinedMemory(t *testing.T) {
	for memory, want := range map[int64]string{64 << 20: "65536", 0: "unlimited"} {
		c := Confined{Env: IsolatedEnviron(), Memory: memory}
		out, err := Output(c.Command(t.Context(), child("ulimit -d")...))
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("limit of a process that git has started: got %q, %v, want %q", got, err, want)
		}
	}
	c := Confined{Env: IsolatedEnviron(), Memory: 512 << 20}
	out, err := Output(c.ForCommits().Command(t.Context(), child("ulimit -d")...))
	if got := strings.TrimSpace(string(out)); err != nil || got != "65536" {
		t.Errorf("limit for commits: got %q, %v, want 65536", got, err)
	}
	// Git reads all of the standard input into memory, so it exceeds the limit.
	hash := c.ForCommits().Command(t.Context(), "hash-object", "-t", "commit", "--literally", "--stdin")
	hash.Stdin = strings.NewReader(strings.Repeat("x", 100<<20))
	if err := Run(hash); err == nil || !strings.HasPrefix(err.Error(), "git hash-object: ") ||
		!strings.Contains(err.Error(), "memory") {
		t.Errorf("command that needs too much memory: got %v", err)
	}
	limited := WithMemory(t.Context(), 256<<20)
	for want, cmd := range map[string]*exec.Cmd{"262144": c.Command(limited, child("ulimit -d")...),
		"32768": Confined{Env: c.Env}.ForCommits().Command(limited, child("ulimit -d")...)} {
		out, err := Output(cmd)
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("limit of the context: got %q, %v, want %s", got, err, want)
		}
	}
	if got := MemoryOf(WithMemory(t.Context(), 0), 5); got != 5 {
		t.Errorf("limit without one in the context: got %d, want 5", got)
	}
}

func TestLimitMemory(t *testing.T) {
	cmd := Confined{Env: IsolatedEnviron()}.Command(t.Context(), "cat-file", "--batch")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := LimitMemory(cmd.Process.Pid, 64<<20); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_DATA, nil, &limit); err != nil || limit.Cur != 64<<20 ||
		limit.Max != 64<<20 {
		t.Errorf("limit: got %+v, %v", limit, err)
	}
}

func TestConfinedEnvironment(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hidden")
	t.Setenv("PGPASSWORD", "hidden")
	for _, memory := range []int64{0, 1 << 30} {
		c := Confined{Env: []string{"PATH=" + os.Getenv("PATH"), "A=b"}, Memory: memory}
		out, err := Output(c.Command(t.Context(), child("env")...))
		if err != nil || strings.Contains(string(out), "hidden") || !strings.Contains(string(out), "A=b\n") {
			t.Errorf("environment with the limit %s: got %s, %v", strconv.FormatInt(memory, 10), out, err)
		}
	}
	t.Setenv("PATH", "")
	if err := Run(Confined{Memory: 1 << 30}.Command(t.Context(), "version")); err == nil ||
		!strings.Contains(err.Error(), exec.ErrNotFound.Error()) {
		t.Errorf("command without git: got %v", err)
	}
}
