package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	quietPoll  = 500 * time.Millisecond // interval at which the counters of the daemon are read
	quietPolls = 6                      // a run is complete after this number of intervals with only background work
	startLimit = 20 * time.Second       // timeout for the git server to print its URLs
	endLimit   = 20 * time.Second       // timeout for a daemon to end after it was asked to
	roundTrip  = "5ms"                  // round-trip time that the git server simulates
	folders    = 30                     // number of folders of the repository
	filesEach  = 10                     // number of files of each folder
)

// rig is a daemon with counters, one mount, and a git server.
type rig struct {
	ctx        context.Context // context of the whole program, so that an interrupt ends every wait
	tmp        string
	state, mnt string
	covdata    string        // path of go tool covdata
	idle       time.Duration // length of the idle interval, and maximum length of a run
	background byRole        // background work, which is left out of the results
	// all functions that the daemon entered in the idle interval; a run is complete when the daemon enters only these
	seen     walk
	saved    string    // ID of the last checkpoint
	fetched  int64     // number of contents that had been fetched before the current read
	server   *exec.Cmd // process of the git server; nil if it was not started
	lifeline io.Closer // the git server ends when this is closed
}

func (r *rig) afs() string      { return filepath.Join(r.tmp, "artifactfs") }
func (r *rig) gitserve() string { return filepath.Join(r.tmp, "gitserve") }
func (r *rig) counters() string { return filepath.Join(r.tmp, "counters") }
func (r *rig) remote() string   { return filepath.Join(r.tmp, "srv/work.git") }

// environment returns the environment variables of all programs that r starts. They contain no settings of the user.
func (r *rig) environment() []string {
	kept := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "GIT_") || strings.HasPrefix(e, "ARTIFACTFS_") || strings.HasPrefix(e, "XDG_")
	})
	return append(kept, "HOME="+filepath.Join(r.tmp, "home"), "GIT_CONFIG_NOSYSTEM=1", "GOCOVERDIR="+r.counters(),
		"GIT_AUTHOR_NAME=walks", "GIT_AUTHOR_EMAIL=walks@localhost", "GIT_COMMITTER_NAME=walks",
		"GIT_COMMITTER_EMAIL=walks@localhost", "ARTIFACTFS_STATE="+r.state)
}

// run runs a program and returns its standard output without the last newline.
func (r *rig) run(name string, args ...string) (string, error) {
	return r.runIn(r.ctx, r.tmp, name, args...)
}

func (r *rig) runIn(ctx context.Context, dir, name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env, c.Stderr = dir, r.environment(), &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// status holds the fields of the output of "artifactfs status --json" that this program uses.
type status struct {
	Blobs   struct{ Fetched int64 }
	Session struct{ Pending int64 }
}

func (r *rig) status() (s status, err error) {
	text, err := r.run(r.afs(), "status", "--json", r.mnt)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("parse status: %w", err)
	}
	return s, nil
}

// start creates a repository and an empty session remote, serves both, and mounts the repository.
func (r *rig) start() error {
	progress("mounting")
	app := filepath.Join(r.tmp, "srv/app.git")
	for _, dir := range []string{"home", "counters", "plain"} {
		if err := os.MkdirAll(filepath.Join(r.tmp, dir), 0o755); err != nil {
			return err
		}
	}
	plain := filepath.Join(r.tmp, "plain")
	for n := range folders * filesEach {
		name := filepath.Join(plain, file(n/filesEach, n%filesEach))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, fmt.Appendf(nil, "%0*d\n", 500+n, n), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", plain},
		{"-C", plain, "add", "-A"},
		{"-C", plain, "commit", "-q", "-m", "first"},
		{"clone", "-q", "--bare", plain, app},
		{"-C", app, "config", "uploadpack.allowFilter", "true"},
		{"-C", app, "config", "uploadpack.allowAnySHA1InWant", "true"},
		{"init", "-q", "--bare", "-b", "main", r.remote()},
		{"-C", r.remote(), "config", "http.receivepack", "true"},
	} {
		if _, err := r.run("git", args...); err != nil {
			return err
		}
	}
	urls, err := r.serve()
	if err != nil {
		return err
	}
	if _, err = r.run(r.afs(), append(append([]string{"mount"}, quiet...), "--session", "work", "--session-remote",
		urls["work.git"], "--wait", "git", urls["app.git"], r.mnt)...); err != nil {
		return err
	}
	// The session is pushed now, so that a run pushes only what it has changed.
	_, err = r.run(r.afs(), "sync", "--timeout", "30s", r.mnt)
	return err
}

// quiet lists the flags that turn off prefetching and automatic checkpoints of a mount.
var quiet = []string{"--prefetch", "none", "--checkpoint", "off"}

// file returns the path of a file of the repository.
func file(folder, n int) string { return fmt.Sprintf("d%02d/f%02d", folder, n) }

// serve starts the git server and returns the URLs of the repositories by their names.
func (r *rig) serve() (urls map[string]string, err error) {
	c := exec.Command(r.gitserve(), "-root", filepath.Join(r.tmp, "srv"), "-rtt", roundTrip)
	c.Env, c.Stderr = r.environment(), os.Stderr
	if r.lifeline, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	r.server = c
	// A server that prints nothing is killed after startLimit, which ends the loop below.
	limit := time.AfterFunc(startLimit, func() { c.Process.Kill() })
	defer limit.Stop()
	urls = map[string]string{}
	for lines := bufio.NewScanner(out); len(urls) < 2 && lines.Scan(); {
		urls[filepath.Base(lines.Text())] = lines.Text()
	}
	if len(urls) < 2 {
		return nil, errors.New("start git server: no URLs printed")
	}
	return urls, nil
}

// end unmounts everything, ends all processes and removes all files. If an unmount fails, it keeps the files.
func (r *rig) end() error {
	var errs []error
	if _, err := os.Stat(r.state); err == nil {
		// A new context is used, because an interrupt of the program cancels r.ctx. --detach is needed if a process in
		// another mount namespace has a copy of the mounts.
		_, err := r.runIn(context.Background(), r.tmp, r.afs(), "unmount", "--all", "--detach", "--timeout", "10s")
		errs = append(errs, err, r.endDaemons())
	}
	if r.server != nil {
		r.lifeline.Close()
		r.server.Wait()
	}
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(table), " "+r.tmp+"/") {
		return errors.Join(append(errs, err, errors.New("clean up: a mount remains"))...)
	}
	return errors.Join(append(errs, os.RemoveAll(r.tmp))...)
}

// endDaemons waits until the processes of the daemon have ended. It kills those that still run after endLimit, and then
// returns an error.
func (r *rig) endDaemons() error {
	for deadline := time.Now().Add(endLimit); ; time.Sleep(quietPoll) {
		pids, err := r.daemons()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			return fmt.Errorf("end daemon: killed processes %v after the time limit", pids)
		}
	}
}
