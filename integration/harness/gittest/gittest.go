// Package gittest makes real git repositories and serves them with real git: smart HTTP through git http-backend,
// git:// through git daemon, ssh through sshd. It is used by tests of the other packages, so it imports only package
// object.
//
// Every server is behind a link that simulates the latency and bandwidth of a network connection. Tests can make the
// server misbehave (Server.Inject, Server.Down). The server keeps an exact log of requests and answers (Server.Log).
//
// The log contains all bytes that a client has received: every byte is counted before it is passed on, and readers of
// the log wait for packs that are still being counted.
//
// An answer is the body of a response. The number of objects in a pack comes from the pack's header; to count blobs,
// the pack is read. A round trip is a request or the opening of a connection.
//
// Locks: Server.mu, Log.mu, Injection.mu, link.mu, group.mu and each queue's mu are leaves: while one of them is held,
// no other lock is acquired, and no read, write or wait for a process is done. records.mu (which is held while files
// are read) and dialogue.mu are acquired before them, in this order.
package gittest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Env returns this process's environment without settings that influence git: it has no GIT_ variables of this process,
// no configuration of the user or the machine, no proxies, and no prompts. Author and committer are fixed.
func Env() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "GIT_EXEC_PATH":
		case strings.HasPrefix(name, "GIT_"), strings.HasSuffix(strings.ToLower(name), "_proxy"),
			name == "SSH_ASKPASS", name == "XDG_CONFIG_HOME", name == "LC_ALL", name == "LANGUAGE":
			continue
		}
		env = append(env, e)
	}
	return append(env, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=gittest", "GIT_AUTHOR_EMAIL=gittest@localhost", "GIT_COMMITTER_NAME=gittest",
		"GIT_COMMITTER_EMAIL=gittest@localhost",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
}

// Git runs stock git in dir with the environment Env and returns its output without the last newline. Errors contain
// git's error output.
func Git(ctx context.Context, dir string, args ...string) (string, error) {
	return run(ctx, dir, nil, nil, args...)
}

// Must runs git like Git, and ends the test with a failure if git fails. When the test ends, a git process that still
// runs is killed.
func Must(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := Git(t.Context(), dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run runs git like Git, with standard input and additional environment variables.
func run(ctx context.Context, dir string, stdin io.Reader, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = dir, stdin
	cmd.Env = append(Env(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// execPath returns the directory that contains the git programs http-backend and daemon.
var execPath = sync.OnceValues(func() (string, error) {
	return Git(context.Background(), "", "--exec-path")
})

// program returns the path of one of the programs in execPath.
func program(name string) (string, error) {
	dir, err := execPath()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}
