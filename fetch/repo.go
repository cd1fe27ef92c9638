package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// gitDelay is how long after git's end another process may still hold its output open.
const gitDelay = 5 * time.Second

// prepare opens the store's git directory, and creates it if it does not exist. partial is true if
// the remote can supply missing objects on demand.
func (s *Store) prepare(ctx context.Context, f object.Format, partial bool) error {
	if have, ok := readFormat(s.GitDir()); ok {
		if have != f {
			return fmt.Errorf("open store: object format is %s, the remote's is %s", have, f)
		}
		if err := s.markPartial(partial); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
		return s.openObjects(f)
	}
	if err := s.makeGitDir(ctx, f, partial); err != nil {
		return fmt.Errorf("create store: %w", err)
	}
	return s.openObjects(f)
}

// makeGitDir has git create the bare repository in a temporary directory, which it renames when it
// is complete: two processes may do so at the same time.
func (s *Store) makeGitDir(ctx context.Context, f object.Format, partial bool) error {
	tmp, err := os.MkdirTemp(s.dir, "git-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// The empty template keeps the host's hooks and excludes out of the store.
	if _, err := runGit(ctx, tmp, remoteAccess{}, "init", "-q", "--bare", "--template=", "--object-format="+f.String(), "."); err != nil {
		return err
	}
	config, err := os.OpenFile(filepath.Join(tmp, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(config, storeConfig, quoteConfig(s.remote.URL()))
	if err == nil && partial {
		_, err = config.WriteString(partialConfig)
	}
	if err = errors.Join(err, config.Close()); err != nil {
		return err
	}
	err = os.Rename(tmp, s.GitDir())
	// Another process has created an equivalent repository in the meantime, which is used instead.
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// markPartial sets or removes partialConfig in the store's configuration.
func (s *Store) markPartial(partial bool) error {
	path := filepath.Join(s.GitDir(), "config")
	config, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(config), partialConfig) == partial {
		return err
	}
	changed := strings.ReplaceAll(string(config), partialConfig, "")
	if partial {
		changed += partialConfig
	}
	return disk.WriteFile(path, []byte(changed), 0o644)
}

// storeConfig names the remote and turns git's automatic maintenance off.
const storeConfig = `[remote "origin"]
	url = %s
	fetch = +refs/heads/*:refs/heads/*
[gc]
	auto = 0
[maintenance]
	auto = false
[fetch]
	unpackLimit = 1
`

// partialConfig marks the store as a partial clone, so that git's own commands know that blobs are
// missing on purpose. It must not be set where stock git fetches: over the protocols of plain file
// servers, git would request every missing object through another git that does the same, without
// end.
const partialConfig = `[remote "origin"]
	promisor = true
	partialclonefilter = blob:none
`

// quoteConfig returns value as a quoted string of git's configuration syntax.
func quoteConfig(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// readFormat returns the object format of a git directory, and false if there is none.
func readFormat(gitDir string) (object.Format, bool) {
	if _, err := os.Stat(filepath.Join(gitDir, "HEAD")); err != nil {
		return 0, false
	}
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err != nil {
		return 0, false
	}
	// SHA-1 repositories have no extensions.objectFormat, or one that names sha1.
	if strings.Contains(strings.ToLower(string(config)), "objectformat = sha256") {
		return object.SHA256, true
	}
	return object.SHA1, true
}

// remoteAccess is the environment and the login with which stock git reaches a remote. The zero value is for commands that
// contact no remote.
type remoteAccess struct {
	env   transport.Environment
	login *os.File // git's descriptor 3; nil: none
}

// runGit runs stock git in a git directory and returns its output. An error contains the last line that git wrote to standard
// error. with describes how git contacts a remote; the zero value is for commands that contact none.
func runGit(ctx context.Context, gitDir string, with remoteAccess, args ...string) ([]byte, error) {
	cmd := gitcmd.New(ctx, args...)
	cmd.Dir = gitDir
	cmd.Env = append(with.env.ForRemote(), "GIT_DIR="+gitDir, gitcmd.NoPrompt, gitcmd.PlainText)
	if with.login != nil {
		cmd.ExtraFiles = []*os.File{with.login}
	}
	// git runs in a new process session, so that all processes that it starts can be killed together with it, and no helper
	// waits for input at a terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = gitDelay
	out, err := gitcmd.Output(cmd)
	if err == nil {
		return out, nil
	}
	if failed := new(gitcmd.Error); errors.As(err, &failed) {
		failed.Stderr = lastLine(failed.Stderr)
	}
	return nil, err
}

// lastLine returns the last line of s: git prints its fatal error after progress and hints.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
