package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// errUnpinned is returned if the contents of a file were not frozen because the file is larger than
// FreezeOptions.MaxPinned.
var errUnpinned = errors.New("contents of a large file were not frozen")

// converts reports whether git may convert the file at path. If the attributes cannot be read, it logs the error and
// returns false.
func (c *Capturer) converts(ctx context.Context, path string) bool {
	if c.o.Converts == nil {
		return false
	}
	yes, err := c.o.Converts(ctx, path)
	if err != nil {
		c.o.Log.Warn("read attributes", zap.String("path", path), zap.Error(err))
	}
	return yes
}

// cleanPrefix is the name prefix of the temporary directories, inside the Repo's directory, in which git converts
// files.
const cleanPrefix = "artifactfs-clean-"

// sweepClean removes the temporary directories that killed processes left in the Repo's directory. Their names begin
// with cleanPrefix. It logs errors.
func (c *Capturer) sweepClean() {
	entries, err := os.ReadDir(c.o.Repo.Dir())
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), cleanPrefix) {
			if err := os.RemoveAll(filepath.Join(c.o.Repo.Dir(), e.Name())); err != nil {
				c.o.Log.Warn("remove temporary files of conversions", zap.Error(err))
			}
		}
	}
}

// cleaning is a temporary working tree that holds the files to convert and the .gitattributes files that apply to them.
// Git runs there because it must never read the mount: such a read would call back into the daemon, which waits for
// git.
type cleaning struct {
	c   *Capturer
	e   *edit
	dir string
	top string // directory of the linked worktree that contains the files; "" for the main working tree
}

// work returns the name of the temporary copy of the file at path.
func (l *cleaning) work(path string) string {
	return filepath.Join(l.dir, "work", filepath.FromSlash(relative(path, l.top)))
}

// clean converts the files in e.cleaned. It converts the files of each working tree, main or linked, by separate git
// commands.
func (e *edit) clean(ctx context.Context) error {
	if len(e.c.roots) == 0 {
		return e.c.clean(ctx, e, "", e.cleaned)
	}
	slices.SortStableFunc(e.cleaned,
		func(a, b source) int { return strings.Compare(e.c.roots.above(a.path), e.c.roots.above(b.path)) })
	for list := e.cleaned; len(list) > 0; {
		top := e.c.roots.above(list[0].path)
		n := slices.IndexFunc(list, func(s source) bool { return e.c.roots.above(s.path) != top })
		if n < 0 {
			n = len(list)
		}
		if err := e.c.clean(ctx, e, top, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// clean converts the files of list as the command "git add" does, and sets the id of each file to that of the converted
// blob. All files are in the working tree whose directory is top.
func (c *Capturer) clean(ctx context.Context, e *edit, top string, list []source) error {
	dir, err := os.MkdirTemp(c.o.Repo.Dir(), cleanPrefix)
	if err != nil {
		return err
	}
	// The directory holds the blobs that git made until they are copied to the Repo. Then output.close removes it.
	e.out.temps = append(e.out.temps, dir)
	l := &cleaning{c, e, dir, top}
	if err := l.attributes(ctx, list); err != nil {
		return err
	}
	for i := range list {
		if err := l.put(&list[i]); err != nil {
			return err
		}
	}
	err = l.add(ctx, list)
	// If git fails, convert the files one by one, so that one file that git cannot convert does not affect the others.
	if err != nil && ctx.Err() == nil && len(list) > 1 {
		for i := range list {
			if err := l.add(ctx, list[i:i+1]); err != nil {
				l.unconverted(ctx, &list[i], err)
			}
		}
		return ctx.Err()
	}
	if err != nil && ctx.Err() == nil {
		l.unconverted(ctx, &list[0], err)
		return nil
	}
	return err
}

// unconverted stores a file without conversion, after git has failed to convert it. If the filter of the file is
// required, the contents must not be stored as they are: unconverted sets s.refused instead.
func (l *cleaning) unconverted(ctx context.Context, s *source, cause error) {
	required, err := l.required(ctx, s.path)
	if s.refused = required || err != nil; s.refused {
		l.c.o.Log.Warn("leave out file that a required filter could not convert", zap.String("path", s.path),
			zap.Error(errors.Join(cause, err)))
		return
	}
	l.c.o.Log.Warn("store file without conversion", zap.String("path", s.path), zap.Error(cause))
	one := []source{*s}
	if err := l.e.out.hash(ctx, one); err == nil {
		l.e.out.keep(&one[0])
		s.id = one[0].id
	}
}

// attributes writes the .gitattributes files that apply to the files of list into the temporary working tree. It reads
// them from the new tree.
func (l *cleaning) attributes(ctx context.Context, list []source) error {
	done := map[string]bool{}
	if l.top != "" {
		done[parent(l.top)] = true // the directories above a linked worktree are in another working tree
	}
	for i := range list {
		for dir := parent(list[i].path); !done[dir]; dir = parent(dir) {
			done[dir] = true
			path := join(dir, attributesName)
			mode, id, err := l.e.trees.get(ctx, path)
			if err != nil {
				return err
			}
			if mode != object.ModeFile && mode != object.ModeExec {
				continue
			}
			text, err := l.read(ctx, path, id)
			if err != nil {
				return fmt.Errorf("read file %s: %w", path, err)
			}
			if err := os.MkdirAll(l.work(dir), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(l.work(path), text, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// read returns the contents of a blob of the new tree.
func (l *cleaning) read(ctx context.Context, path string, id object.ID) ([]byte, error) {
	for i := range l.e.plain {
		// The .gitattributes file is new in this checkpoint, so its blob is not in the Repo yet.
		if s := &l.e.plain[i]; s.path == path && s.id == id {
			text := make([]byte, s.size)
			_, err := io.ReadFull(io.NewSectionReader(s.content, 0, s.size), text)
			return text, err
		}
	}
	_, text, err := l.c.o.Repo.Get(id, maxIgnoreFile)
	if err != nil && l.c.o.Blob != nil {
		ctx, cancel := context.WithTimeout(ctx, fetchWait)
		defer cancel()
		return l.c.o.Blob(ctx, path, id)
	}
	return text, err
}

// put writes the contents of a file into the temporary working tree.
func (l *cleaning) put(s *source) error {
	name := l.work(s.path)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.NewSectionReader(s.content, 0, s.size))
	return errors.Join(err, f.Close())
}

// add lets git convert the files of list, with a temporary index, and sets the ids of their blobs. The temporary index
// first gets the user's index entries of the files, because git's conversion of line ends depends on the staged blob.
func (l *cleaning) add(ctx context.Context, list []source) error {
	var staged, paths bytes.Buffer
	for i := range list {
		path := relative(list[i].path, l.top)
		fmt.Fprintf(&paths, "%s\x00", path)
		was, err := l.e.v.staged(list[i].path)
		if err != nil {
			return err
		}
		// With core.autocrlf, git does not convert CRLF in a file whose staged blob contains CRLF.
		if was.Mode.IsBlob() {
			fmt.Fprintf(&staged, "%o %s\t%s\x00", uint32(was.Mode), was.ID, path)
		}
	}
	index, objects := filepath.Join(l.dir, "index"), filepath.Join(l.dir, "objects")
	if err := os.Remove(index); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(objects, 0o700); err != nil {
		return err
	}
	run := l.run()
	// The user's values of these settings could make git write a second index file, skip files, or refuse a conversion.
	settings := []string{"-c", "core.splitIndex=false", "-c", "core.sparseCheckout=false", "-c", "core.safecrlf=false",
		"update-index", "-z"}
	run.in = staged.String()
	if _, err := l.c.git(ctx, run, append(settings, "--index-info")...); err != nil {
		return err
	}
	run.in = paths.String()
	if _, err := l.c.git(ctx, run, append(settings, "--add", "--stdin")...); err != nil {
		return err
	}
	run.in = ""
	out, err := l.c.git(ctx, run, "ls-files", "-s", "-z")
	if err != nil {
		return err
	}
	ids, err := parseStaged(l.c.format, out)
	if err != nil {
		return err
	}
	loose := odb.NewLoose(objects, l.c.format)
	for i := range list {
		id, ok := ids[relative(list[i].path, l.top)]
		if !ok {
			return fmt.Errorf("git add did not add %s", list[i].path)
		}
		list[i].id = id
		if err := l.take(loose, id); err != nil {
			return err
		}
	}
	return nil
}

// run returns a run of git in the temporary working tree. Git writes new objects to a temporary directory, and only
// reads the objects of the git directory.
func (l *cleaning) run() gitRun {
	work := filepath.Join(l.dir, "work")
	return gitRun{dir: work, env: []string{
		"GIT_WORK_TREE=" + work, "GIT_INDEX_FILE=" + filepath.Join(l.dir, "index"),
		"GIT_OBJECT_DIRECTORY=" + filepath.Join(l.dir, "objects"),
		gitcmd.Alternates(filepath.Join(l.c.o.GitDir, "objects")),
	}}
}

// take adds the blob that git made of a file to the objects of the checkpoint. If git did not write the blob, the git
// directory already had it; then take copies the blob from the git directory, unless the mounted remote has it.
func (l *cleaning) take(loose *odb.Loose, id object.ID) error {
	_, size, err := loose.Size(id)
	if errors.Is(err, odb.ErrNotFound) {
		return l.e.copier.Blob(id)
	}
	if err != nil {
		return err
	}
	l.e.out.add(odb.Outgoing{ID: id, Type: object.Blob, Size: size, Open: func() (io.ReadCloser, error) {
		// WriteTo writes to a writer, but the pack reads from a reader. The pipe connects the two, so that a large blob is
		// never in memory as a whole.
		in, out := io.Pipe()
		go func() { out.CloseWithError(loose.WriteTo(id, out)) }()
		return in, nil
	}})
	return nil
}

// parseStaged parses the output of `git ls-files -s -z`, in which each entry is "MODE ID STAGE\tPATH\0", and returns
// the ids by path.
func parseStaged(f object.Format, out []byte) (map[string]object.ID, error) {
	ids := map[string]object.ID{}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		head, path, ok := strings.Cut(line, "\t")
		fields := strings.Fields(head)
		if !ok || len(fields) != 3 {
			if line == "" {
				continue
			}
			return nil, fmt.Errorf("read output of git ls-files: invalid line %.80q", line)
		}
		id, err := object.ParseID(fields[1])
		if err != nil || id.Format() != f {
			return nil, fmt.Errorf("read output of git ls-files: invalid line %.80q", line)
		}
		ids[path] = id
	}
	return ids, nil
}
