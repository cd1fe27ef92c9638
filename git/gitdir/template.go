package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// madeSuffix is part of the name of the directory in which git init creates a repository. The name consists of the name
// of the git directory, madeSuffix and a random suffix.
const madeSuffix = ".new"

// fromTemplate runs git init in a temporary directory and copies the files that git puts into every new repository to
// path: hooks, description, info/exclude, and the rest of the user's template. It returns the configuration in the
// template. If git is not installed, the returned configuration is empty.
func fromTemplate(path string, o Options) (*config.Config, error) {
	c := config.New()
	if err := os.MkdirAll(path, 0o755); err != nil || o.Git == (Version{}) {
		return c, err
	}
	// git init writes HEAD, which Create must write last, so run git init in another directory. First remove such
	// directories of processes that have died. A git process that still runs may write to one of them, so use a new name
	// each time.
	left, _ := disk.Glob(filepath.Dir(path), disk.QuoteGlob(filepath.Base(path))+madeSuffix+"*")
	for _, dir := range left {
		os.RemoveAll(dir)
	}
	made, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+madeSuffix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(made)
	cmd := gitcmd.New(context.Background(), "init", "--quiet", "--bare", made)
	cmd.Env = append(gitcmd.Environ(environment(o.Environment)),
		"GIT_DEFAULT_HASH=sha1", "GIT_DEFAULT_REF_FORMAT=files")
	if err := gitcmd.Run(cmd); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(made, "config"))
	if err != nil {
		return nil, err
	}
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return nil, fmt.Errorf("read configuration of the git template: %w", err)
	}
	entries, err := os.ReadDir(made)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch e.Name() {
		case "HEAD", "config", "objects", "refs", "packed-refs":
			continue
		}
		if err := copyTree(filepath.Join(made, e.Name()), filepath.Join(path, e.Name())); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// copyTree copies a file, a symbolic link or a directory. It does not rename, because the git directory may be a mount
// point (package guard).
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		at := filepath.Join(to, relative)
		info, err := e.Info()
		switch {
		case err != nil:
			return err
		case e.IsDir():
			err = os.Mkdir(at, info.Mode().Perm())
		case e.Type() == fs.ModeSymlink:
			var target string
			if target, err = os.Readlink(name); err == nil {
				err = os.Symlink(target, at)
			}
		default:
			var content []byte
			if content, err = os.ReadFile(name); err == nil {
				err = os.WriteFile(at, content, info.Mode().Perm())
			}
		}
		if errors.Is(err, fs.ErrExist) { // The file exists, because an earlier attempt was interrupted.
			return nil
		}
		return err
	})
}

// writeLogs writes the first entries of the reflogs of HEAD, of the branch and of HEAD of the remote, as git clone
// does. The entries contain the user's identity.
func (o Options) writeLogs(path string) error {
	if o.Commit.IsZero() || o.Git == (Version{}) {
		return nil
	}
	cmd := gitcmd.New(context.Background(), "var", "GIT_COMMITTER_IDENT")
	cmd.Env = gitcmd.Environ(environment(o.Environment))
	out, err := cmd.Output()
	// the user has configured no identity; like git clone, use an identity made of the user name and the host name
	if err != nil {
		name := "unknown"
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		host, err := os.Hostname()
		if err != nil {
			host = "localhost"
		}
		now := time.Now()
		out = fmt.Appendf(nil, "%s <%s@%s> %d %s", name, name, host, now.Unix(), now.Format("-0700"))
	}
	line := strings.Repeat("0", 2*o.Format.Size()) + " " + o.Commit.String() + " " + strings.TrimSpace(string(out)) +
		"\tclone: from " + o.Remote + "\n"
	logs := []string{"HEAD"}
	if strings.HasPrefix(o.Ref, "refs/heads/") {
		logs = append(logs, o.Ref)
	}
	if o.Branch != "" {
		logs = append(logs, o.Branch)
	}
	if o.Default != "" {
		logs = append(logs, refname.Tracking(path, "HEAD"))
	}
	for _, name := range logs {
		name = filepath.Join(path, "logs", name)
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(line), 0o644); err != nil {
			return err
		}
	}
	return nil
}
