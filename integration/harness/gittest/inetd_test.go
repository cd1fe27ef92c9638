package gittest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// inetdServers contains the servers that run a program for each connection.
var inetdServers = map[string]func(ServerOptions) (*Server, []string, error){
	"git": func(o ServerOptions) (*Server, []string, error) {
		s, err := ServeGitDaemon(o)
		return s, nil, err
	},
	"ssh": func(o ServerOptions) (*Server, []string, error) {
		s, command, err := ServeSSH(o)
		return s, []string{"GIT_SSH_COMMAND=" + command}, err
	},
}

// client runs git and kills it and all processes that it has started when ctx ends.
func client(ctx context.Context, env []string, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	cmd := exec.Command("git", args...)
	cmd.Env = append(Env(), env...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	var g group
	if err := g.start(cmd); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, g.close)
	defer stop()
	if err := g.wait(cmd); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, &complaints)
	}
	return out.String(), nil
}

// serving reports whether a program runs for a connection of the server. The environment of the program is not
// sufficient to find it, because sshd overwrites its environment with its title.
func serving(s *Server) bool {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	return len(s.group.leaders) > 0
}

// inetdClient runs git with a time limit of one minute and with the settings that the server requires.
type inetdClient func(ctx context.Context, args ...string) (string, error)

func forEachInetd(t *testing.T, o ServerOptions, test func(t *testing.T, s *Server, r *Repo, git inetdClient)) {
	for name, serve := range inetdServers {
		t.Run(name, func(t *testing.T) {
			if name == "ssh" {
				if _, err := findSSHD(); err != nil {
					t.Skip(err)
				}
			}
			root := t.TempDir()
			outside, err := New(filepath.Join(t.TempDir(), "outside.git"), RepoOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := outside.Sized(4, 25); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside.Path, filepath.Join(root, "a b.git")); err != nil {
				t.Fatal(err)
			}
			o := o
			o.Root = root
			s, env, err := serve(o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() }) // closes the server if the test ends early
			home := s.home
			test(t, s, outside, func(ctx context.Context, args ...string) (string, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return client(ctx, env, args...)
			})
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if left := processesOf(home); len(left) > 0 {
				t.Errorf("processes left behind: %v", left)
			}
			if _, err := os.Stat(home); !os.IsNotExist(err) {
				t.Errorf("%s is left behind: %v", home, err)
			}
		})
	}
}

func TestInetdClones(t *testing.T) {
	forEachInetd(t, ServerOptions{}, func(t *testing.T, s *Server, r *Repo, git inetdClient) {
		dir := filepath.Join(t.TempDir(), "clone")
		if _, err := git(t.Context(), "-c", "protocol.version=2", "clone", "--quiet", "--no-checkout", "--filter=blob:none",
			s.URL("a b.git"), dir); err != nil {
			t.Fatal(err)
		}
		if n := len(blobsIn(t, dir)); n != 0 {
			t.Errorf("a clone without blobs has %d", n)
		}
		if _, err := git(t.Context(), "-C", dir, "checkout", "--quiet"); err != nil {
			t.Fatal(err)
		}
		if n := len(blobsIn(t, dir)); n != 100 {
			t.Errorf("a checkout of 100 files brought %d blobs", n)
		}
		if n := s.Log().Connections(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
		if _, err := git(t.Context(), "clone", "--quiet", s.URL("none.git"), filepath.Join(t.TempDir(), "none")); err == nil {
			t.Error("a repository that does not exist was cloned")
		}
	})
}

func TestInetdSettings(t *testing.T) {
	forEachInetd(t, ServerOptions{Config: []string{"uploadpack.hideRefs=refs/heads/hidden"}},
		func(t *testing.T, s *Server, r *Repo, git inetdClient) {
			if _, err := r.Commit("hidden", map[string]File{"f": {}}, "unseen"); err != nil {
				t.Fatal(err)
			}
			refs, err := git(t.Context(), "ls-remote", s.URL("a b.git"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(refs, "refs/heads/main") || strings.Contains(refs, "hidden") {
				t.Errorf("refs are\n%s", refs)
			}
		})
}

func TestInetdCutAndDown(t *testing.T) {
	forEachInetd(t, ServerOptions{}, func(t *testing.T, s *Server, _ *Repo, git inetdClient) {
		list := func() error {
			_, err := git(t.Context(), "ls-remote", s.URL("a b.git"))
			return err
		}
		cut := s.Inject(Fault{Kind: Cut, After: 100, Times: 1})
		if err := list(); err == nil || cut.Hits() != 1 {
			t.Errorf("cut %d times, error %v", cut.Hits(), err)
		}
		s.Down()
		if err := list(); err == nil {
			t.Error("a server that is down answered")
		}
		if err := s.Up(); err != nil {
			t.Fatal(err)
		}
		if err := list(); err != nil {
			t.Error(err)
		}
	})
}

// TestInetdCloseInStall checks that a server can be closed while a client waits for bytes of a stalled answer.
func TestInetdCloseInStall(t *testing.T) {
	forEachInetd(t, ServerOptions{}, func(t *testing.T, s *Server, r *Repo, git inetdClient) {
		// The blob is larger than all buffers together, so git cannot finish sending it.
		if _, err := r.Commit("main", map[string]File{"large": {Data: noise(16 << 20)}}, "large"); err != nil {
			t.Fatal(err)
		}
		s.Inject(Fault{Kind: Stall, After: 8000})
		failed := make(chan error, 1)
		go func() {
			_, err := git(t.Context(), "clone", "--quiet", "--bare", s.URL("a b.git"), filepath.Join(t.TempDir(), "clone"))
			failed <- err
		}()
		// Wait until sshd has started a session, which sweep must end.
		await.Until(t, "git serves", func() bool { return len(processesOf(s.home)) > 0 })
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; err == nil {
			t.Error("a stalled clone succeeded")
		}
	})
}

// TestInetdClientLeaves checks that the processes of a connection end when the client disconnects during a stall.
func TestInetdClientLeaves(t *testing.T) {
	forEachInetd(t, ServerOptions{}, func(t *testing.T, s *Server, _ *Repo, git inetdClient) {
		s.Inject(Fault{Kind: Stall, After: 0})
		cut := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := git(ctx, "ls-remote", s.URL("a b.git"))
			cut <- err
		}()
		await.Until(t, "a process serves", func() bool { return serving(s) })
		cancel()
		if err := <-cut; err == nil {
			t.Error("a stalled listing succeeded")
		}
		await.Until(t, "its processes end", func() bool { return !serving(s) && len(processesOf(s.home)) == 0 })
	})
}

func TestInetdDelays(t *testing.T) {
	const rtt = 60 * time.Millisecond
	forEachInetd(t, ServerOptions{RTT: rtt}, func(t *testing.T, s *Server, _ *Repo, git inetdClient) {
		start := time.Now()
		if _, err := git(t.Context(), "ls-remote", s.URL("a b.git")); err != nil {
			t.Fatal(err)
		}
		// One round trip each for the connection, the capabilities and the refs.
		if took := time.Since(start); took < 3*rtt {
			t.Errorf("took %v, less than three round trips of %v", took, rtt)
		}
	})
}
