package gitdir

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Walk calls emit for every path of the unchanged working tree, in the order of git's index. It emits a directory, with
// the id of its tree, before the contents of the directory. The first entry is the root, with the path "".
type Walk func(ctx context.Context, emit func(index.Entry) error) error

// IndexOptions configures WriteIndex and FillIndex.
type IndexOptions struct {
	// journal position up to which the index contains all changes, as git stores it; "" if there is no monitor
	Token string
	// Ignore returns the contents of an ignore file as the mount shows them. The second result is true if git may read the
	// file whenever it searches for untracked files; the index then records the id of the file. An ignore file for which
	// the second result is false is recorded as missing: git notices the file at the first change in or below its
	// directory, and then searches that whole directory, which takes long for the root. If Ignore is nil, all ignore files
	// are recorded as missing.
	Ignore func(e index.Entry) ([]byte, bool)
	// Converts reports whether git would convert a file when it is added (attributes such as text, or filters). If
	// Converts is nil, no file is converted.
	Converts func(e index.Entry) bool
	Files    int     // estimated number of files, to allocate memory for
	Staged   *Staged // staged changes, which are not in the working tree; nil if there are none
	// Bar prevents git commands from starting until release is called. It returns false if a git command is running.
	Bar func() (release func(), ok bool)
}

// WriteIndex writes the index of an unchanged working tree. It does nothing if an index exists, because only git may
// change an existing index. The caller must ensure that no git command runs before WriteIndex has returned: WriteIndex
// removes index.lock, assuming that this file was left by a process that died while it wrote the index.
func (d *Dir) WriteIndex(ctx context.Context, o IndexOptions, walk Walk) error {
	path := filepath.Join(d.path, "index")
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := d.writeIndex(ctx, path, o, walk); err != nil {
		return fmt.Errorf("write index of %s: %w", d.path, err)
	}
	return nil
}

// writeIndex does the work of WriteIndex, which adds the path to the errors.
func (d *Dir) writeIndex(ctx context.Context, path string, o IndexOptions, walk Walk) error {
	untracked, err := d.untracked(ctx)
	if err != nil {
		return err
	}
	b := index.NewBuilder(index.Options{
		Format: d.format, Version: index.Version, Token: o.Token, Untracked: untracked, Files: o.Files,
		Ignore: func(e index.Entry) (object.ID, bool) { return o.ignoreID(d.format, e) },
	})
	err = walk(ctx, func(e index.Entry) error {
		if e.Mode == object.ModeDir {
			b.Dir(e.Path, e.ID, e.Stat)
		} else {
			b.Add(e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	x, err := b.Index()
	if err != nil {
		return err
	}
	if o.Staged != nil {
		o.Staged.Apply(x)
	}
	// Create the lock file first, because only the process that has created it may replace the index. git follows the same
	// rule.
	lock := path + ".lock"
	if err := os.Remove(lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	_, err = x.WriteTo(out)
	err = errors.Join(err, out.Flush(), f.Sync(), f.Close())
	if _, missing := os.Lstat(path); err == nil && errors.Is(missing, fs.ErrNotExist) {
		err = os.Rename(lock, path)
		if err == nil {
			return nil
		}
	}
	return errors.Join(err, os.Remove(lock))
}

// ignoreID returns the id under which git records an ignore file. If git considers the file unchanged and does not
// convert it, this is the id of the blob; otherwise it is the id of the text that git reads. ignoreID returns false if
// the file must be recorded as missing.
func (o IndexOptions) ignoreID(f object.Format, e index.Entry) (object.ID, bool) {
	if o.Ignore == nil || e.Mode == object.ModeSymlink { // git does not follow a symbolic link
		return object.ID{}, false
	}
	content, ok := o.Ignore(e)
	if !ok {
		return object.ID{}, false
	}
	if e.Valid && len(content) > 0 && (o.Converts == nil || !o.Converts(e)) {
		return e.ID, true
	}
	return index.ExcludeID(f, content), true
}

// untracked returns an untracked cache that contains no directories. The other fields of the cache must have the values
// that git expects, because git discards a cache that was written with other settings or for another working tree.
func (d *Dir) untracked(ctx context.Context) (*index.Untracked, error) {
	u := &index.Untracked{Ident: index.Ident(realPath(d.git.workTree)), Flags: index.ShowNormal,
		PerDirectory: ".gitignore"}
	settings, err := d.settings(ctx)
	if err != nil {
		return nil, err
	}
	if settings["status.showuntrackedfiles"] == "all" {
		u.Flags = index.ShowAll
	}
	file := settings["core.excludesfile"]
	if file == "" {
		env := environment(d.git.env)
		file = filepath.Join(cmp.Or(gitcmd.Variable(env, "XDG_CONFIG_HOME"),
			filepath.Join(gitcmd.Variable(env, "HOME"), ".config")), "git", "ignore")
	}
	for name, to := range map[string]*index.Exclude{file: &u.ExcludesFile,
		filepath.Join(d.path, "info", "exclude"): &u.InfoExclude} {
		content, err := disk.ReadRegular(name, disk.LargeFile)
		if err != nil { // like git, ignore a file that cannot be read
			continue
		}
		to.ID = index.ExcludeID(d.format, content)
	}
	return u, nil
}

// settings returns the settings on which the untracked cache depends, by key in lower case. It runs git, because the
// user's configuration may include other files on conditions. HEAD does not exist before the index does
// (Options.Index), so git gets a directory that has a HEAD, and that shares the rest with the git directory.
func (d *Dir) settings(ctx context.Context) (map[string]string, error) {
	r, err := guard.Open(ctx, d.path)
	if err != nil {
		return nil, fmt.Errorf("read git's configuration: %w", err)
	}
	with, err := os.MkdirTemp(filepath.Dir(d.path), filepath.Base(d.path)+madeSuffix)
	if err != nil {
		return nil, fmt.Errorf("read git's configuration: %w", err)
	}
	defer os.RemoveAll(with)
	if err := os.WriteFile(filepath.Join(with, "HEAD"), []byte("ref: refs/heads/none\n"), 0o600); err != nil {
		return nil, fmt.Errorf("read git's configuration: %w", err)
	}
	cmd := gitcmd.New(ctx, "--git-dir", with, "config", "--null", "--type=path", "--get-regexp",
		`^(core\.excludesfile|status\.showuntrackedfiles)$`)
	cmd.Env = append(gitcmd.Environ(environment(d.git.env)), "GIT_COMMON_DIR="+r.Dir)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // exit code 1 means that no setting was found
		return nil, fmt.Errorf("read git's configuration: %w", err)
	}
	settings := map[string]string{}
	for _, line := range strings.Split(string(out), "\x00") {
		if key, value, ok := strings.Cut(line, "\n"); ok {
			settings[key] = value
		}
	}
	return settings, nil
}
