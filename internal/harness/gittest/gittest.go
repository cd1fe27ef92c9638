// Package gittest makes real git repositories and serves them with real git: smart HTTP through git http-backend,
// git:// through git daemon, ssh through sshd. It judges the other packages, so it knows none of them but object.
//
// Every server stands behind a link that delays and narrows like a real line, may be told to misbehave
// (Server.Inject, Server.Down), and keeps an exact log of what was asked and what was sent (Server.Log).
//
// A log is complete as soon as the client has the bytes: every byte is accounted for before it is passed on,
// and readers of the log wait for packs that are still being counted.
//
// Terms: an answer is the body of a response. A pack's objects are counted from its header, its blobs by reading the
// pack. A round trip is a request or the opening of a connection.
//
// Locks: Server.mu, Log.mu, Injection.mu, link.mu, group.mu and each queue's mu are leaves: none is held while
// another is taken, nor across a read, a write or a wait for a process. Above them, in this order, stand records.mu (which
// is held across reads of files on disk) and dialogue.mu.
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
)

// Env is this process's environment without anything that could sway git: no GIT_ variables, no configuration of the
// user or the machine, no proxies, no prompts; author and committer are fixed.
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
		"GIT_AUTHOR_NAME=gittest", "GIT_AUTHOR_EMAIL=gittest@localhost", "GIT_COMMITTER_NAME=gittest", "GIT_COMMITTER_EMAIL=gittest@localhost",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
}

// Git runs stock git in dir under Env and returns what it printed, without the last newline. The error carries what
// it said on stderr.
func Git(ctx context.Context, dir string, args ...string) (string, error) {
	return run(ctx, dir, nil, nil, args...)
}

// run is Git with standard input and variables of its own.
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

// execPath is where git keeps http-backend and daemon.
var execPath = sync.OnceValues(func() (string, error) {
	return Git(context.Background(), "", "--exec-path")
})

// program finds one of git's own programs.
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
