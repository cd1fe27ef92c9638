package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// prepare makes the store's git directory if it is not there yet, and opens it.
func (s *Store) prepare(ctx context.Context, f object.Format) error {
	if have, ok := readFormat(s.GitDir()); ok {
		if have != f {
			return fmt.Errorf("open store: it holds %s objects, the remote's are %s", have, f)
		}
		return s.openObjects(f)
	}
	if err := s.makeGitDir(ctx, f); err != nil {
		return fmt.Errorf("make store: %w", err)
	}
	return s.openObjects(f)
}

// makeGitDir lets git make the bare repository, beside its place, and moves it in when it is whole: two
// processes may do so at once.
func (s *Store) makeGitDir(ctx context.Context, f object.Format) error {
	tmp, err := os.MkdirTemp(s.dir, "git-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := runGit(ctx, tmp, nil, "init", "-q", "--bare", "--template=", "--object-format="+f.String(), "."); err != nil {
		return err
	}
	config, err := os.OpenFile(filepath.Join(tmp, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(config, storeConfig, quoteConfig(s.remote.URL()))
	if err = errors.Join(err, config.Close()); err != nil {
		return err
	}
	err = os.Rename(tmp, s.GitDir())
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// storeConfig marks the store as a partial clone, so that git's own commands know that blobs are missing on
// purpose, and keeps git from tidying up behind our back.
const storeConfig = `[remote "origin"]
	url = %s
	fetch = +refs/heads/*:refs/heads/*
	promisor = true
	partialclonefilter = blob:none
[gc]
	auto = 0
[maintenance]
	auto = false
[fetch]
	unpackLimit = 1
`

func quoteConfig(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// readFormat tells the object format of a git directory; false: there is none.
func readFormat(gitDir string) (object.Format, bool) {
	if _, err := os.Stat(filepath.Join(gitDir, "HEAD")); err != nil {
		return 0, false
	}
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err != nil {
		return 0, false
	}
	if strings.Contains(strings.ToLower(string(config)), "objectformat = sha256") {
		return object.SHA256, true
	}
	return object.SHA1, true
}

// runGit runs stock git in a git directory and gives its output; an error carries what git said.
func runGit(ctx context.Context, gitDir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = gitDir
	cmd.Env = append(os.Environ(), "GIT_DIR="+gitDir, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, lastLine(stderr.String()))
	}
	return stdout.Bytes(), nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
