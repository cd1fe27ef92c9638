package gitdir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
)

// Walk goes over a working tree that nobody has changed, in the order of git's index: a directory, whose ID is its tree's,
// before what is in it, the root with the path "" first.
type Walk func(ctx context.Context, emit func(index.Entry) error) error

// IndexOptions say what the index shall vouch for.
type IndexOptions struct {
	Token string // of the file system monitor; "": there is none
	// Ignore gives the content of an ignore file, as the mount shows it, if git may read it whenever it looks for untracked
	// files; nil: of none. git then reads it every time. Of the others git finds that they are there once something changes
	// beside or below them, and looks at all below then: dear for the root's.
	Ignore func(e index.Entry) ([]byte, bool)
	// Converts says whether git would convert a file on its way into the repository (attributes like text, filters); nil: none.
	Converts func(e index.Entry) bool
	Files    int     // about as many as there are
	Staged   *Staged // what the index has otherwise than the working tree; nil: nothing
	// Bar keeps git commands from beginning until release, if none is at work.
	Bar func() (release func(), ok bool)
}

// WriteIndex writes the index of a working tree that nobody has changed yet, if there is none. Once it is there it is
// git's alone. Until then no git command is let in: a lock is one of a process that died while it wrote.
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
	// As git does it: who holds the lock may replace the file, and nobody else.
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

// ignoreID is the id by which git knows an ignore file: the blob's where git takes the file for unchanged and unconverted,
// else of the text that it reads.
func (o IndexOptions) ignoreID(f object.Format, e index.Entry) (object.ID, bool) {
	if o.Ignore == nil || e.Mode == object.ModeSymlink { // git does not follow it
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

// untracked tells the circumstances under which git believes that there are no untracked files.
func (d *Dir) untracked(ctx context.Context) (*index.Untracked, error) {
	u := &index.Untracked{Ident: index.Ident(realPath(d.workTree)), Flags: index.ShowNormal, PerDirectory: ".gitignore"}
	settings, err := d.settings(ctx)
	if err != nil {
		return nil, err
	}
	if settings["status.showuntrackedfiles"] == "all" {
		u.Flags = index.ShowAll
	}
	file := settings["core.excludesfile"]
	if file == "" {
		if home := os.Getenv("XDG_CONFIG_HOME"); home != "" {
			file = filepath.Join(home, "git", "ignore")
		} else {
			file = filepath.Join(os.Getenv("HOME"), ".config", "git", "ignore")
		}
	}
	for name, to := range map[string]*index.Exclude{file: &u.ExcludesFile, filepath.Join(d.path, "info", "exclude"): &u.InfoExclude} {
		content, err := os.ReadFile(name)
		if err != nil { // git, too, goes on without
			continue
		}
		to.ID = index.ExcludeID(d.format, content)
	}
	return u, nil
}

// settings asks git, since the user's configuration may include other files on conditions.
func (d *Dir) settings(ctx context.Context) (map[string]string, error) {
	cmd := gitcmd.New(ctx, "--git-dir", d.path, "config", "--null", "--type=path", "--get-regexp", `^(core\.excludesfile|status\.showuntrackedfiles)$`)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // 1: neither is set
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
