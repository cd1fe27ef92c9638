package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

type bench struct {
	work, bin string
	rtt       time.Duration
	fullClone bool
	table     *tabwriter.Writer
}

// session is one served repository, with the state of the measurements of this repository.
type session struct {
	*bench
	name, repo, url string
	state           string   // state directory of the last mount
	env             []string // environment of artifactfs; if nil, the environment of this process
	server          *exec.Cmd
	stdin           io.Closer
	places          int
}

// serve starts a server for one repository on the loopback interface.
func (b *bench) serve(repo string) (*session, error) {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return nil, err
	}
	s := &session{bench: b, name: repoName(repo), repo: repo}
	root := filepath.Join(b.work, "root-"+s.name)
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(repo, filepath.Join(root, s.name+".git")); err != nil {
		return nil, err
	}
	s.server = exec.Command(filepath.Join(b.bin, "gitserve"), "-root", root, "-rtt", b.rtt.String(), "-no-object-info")
	s.server.Stderr = os.Stderr
	stdin, err := s.server.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.stdin = stdin
	out, err := s.server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.server.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		for _, word := range strings.Fields(lines.Text()) {
			if strings.HasPrefix(word, "http://") && strings.Contains(word, s.name) {
				s.url = word
				go io.Copy(io.Discard, out)
				return s, nil
			}
		}
	}
	s.stop()
	return nil, fmt.Errorf("start gitserve: no address printed")
}

func (s *session) stop() {
	s.stdin.Close()
	s.server.Wait()
}

// path returns a path that was not used before.
func (s *session) path(what string) string {
	s.places++
	return filepath.Join(s.work, fmt.Sprintf("%s-%s-%d", s.name, what, s.places))
}

func (s *session) git(args ...string) (time.Duration, error) { return timed("git", args...) }

// files returns the paths of the regular files of the served commit.
func (s *session) files() ([]string, error) {
	out, err := exec.Command("git", "--git-dir", s.repo, "ls-tree", "-r", "-z", "HEAD").Output()
	if err != nil {
		return nil, err
	}
	var files []string
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if head, path, ok := strings.Cut(entry, "\t"); ok && strings.HasPrefix(head, "100") {
			files = append(files, path)
		}
	}
	return files, nil
}

// mounted is a mount with its own state directory and daemon, so that nothing is cached at first.
type mounted struct {
	s     *session
	dir   string
	took  time.Duration
	reply struct {
		ID      string
		Files   int64
		Timings struct{ Trees int64 } `json:"timings_ms"`
	}
	pid int
}

type status struct {
	PID     int
	Tree    struct{ Files int64 }
	Blobs   struct{ Total, Fetched int64 }
	Network struct{ Requests, Blobs, Bytes int64 }
}

func (s *session) artifactfs(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, "artifactfs"), append(args, "--state", s.state)...)
	cmd.Stderr, cmd.Env = os.Stderr, s.env
	return cmd
}

// mount mounts the repository with an empty state directory. The field took of the result includes the start of the
// daemon.
func (s *session) mount(args ...string) (*mounted, error) {
	s.state = s.path("state")
	m := &mounted{s: s, dir: s.path("mount")}
	start := time.Now()
	out, err := s.artifactfs(append([]string{"mount", s.url, m.dir, "--json"}, args...)...).Output()
	m.took = time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	if err := json.Unmarshal(out, &m.reply); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	st, err := m.status()
	m.pid = st.PID
	return m, err
}

func (m *mounted) status() (status, error) {
	var st status
	out, err := m.s.artifactfs("status", m.dir, "--json").Output()
	if err != nil {
		return st, fmt.Errorf("read status: %w", err)
	}
	return st, json.Unmarshal(out, &st)
}

func (m *mounted) unmount() error {
	if err := m.s.artifactfs("unmount", m.dir).Run(); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return nil
}

func timed(name string, args ...string) (time.Duration, error) {
	return timedIn("", append([]string{name}, args...)...)
}

// timedIn runs a command in a directory and returns how long it took. The exit status 1 is not an error, because grep
// returns it if there is no match.
func timedIn(dir string, args ...string) (time.Duration, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil && !(args[0] == "grep" && cmd.ProcessState.ExitCode() == 1) {
		return took, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return took, nil
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out)), err
}
