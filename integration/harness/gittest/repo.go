package gittest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// RepoOptions are the options of a new repository.
type RepoOptions struct {
	Format object.Format
}

// Repo is a bare repository in which tests create commits. It must be used by one goroutine at a time.
type Repo struct {
	Path    string
	format  object.Format
	commits int
}

// File is the change of a path in a commit.
type File struct {
	// contents of the file, target of the symbolic link, or ID of the commit in hexadecimal if the path is a gitlink
	Data   []byte
	Mode   string // mode as git prints it; "" for 100644
	Delete bool   // if true, the commit removes the path, which may be a directory
}

// epoch is the time of a repository's first commit, in seconds since 1970. Each further commit is one minute later. The
// times are fixed, so that the IDs of commits are the same in every run.
const epoch = 1_700_000_000

// New creates an empty bare repository at dir whose HEAD is main. It allows all filters of partial fetches, including
// filters by path.
func New(dir string, o RepoOptions) (*Repo, error) {
	r := &Repo{Path: dir, format: o.Format}
	if err := Init(dir, o.Format, "[uploadpack]\n\tallowFilter = true\n\tallowAnySHA1InWant = true\n"); err != nil {
		return nil, fmt.Errorf("make repository: %w", err)
	}
	return r, nil
}

// Init makes an empty bare repository at dir, as "git init --bare --initial-branch=main" does, with the settings in
// addition. It starts no process: tests make thousands of repositories.
func Init(dir string, f object.Format, settings string) error {
	for _, sub := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks", "info"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	// A push starts no process that repacks.
	config := "[receive]\n\tautogc = false\n[gc]\n\tauto = 0\n[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
	if f == object.SHA256 {
		config = strings.Replace(config, "version = 0", "version = 1", 1) + "[extensions]\n\tobjectformat = sha256\n"
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "config"), []byte(config+settings), 0o644),
		os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
}

func (r *Repo) git(args ...string) (string, error) { return Git(context.Background(), r.Path, args...) }

// Commit creates a commit that changes files, on top of a branch. It creates the branch if it does not exist. It
// returns the commit.
func (r *Repo) Commit(branch string, files map[string]File, message string) (object.ID, error) {
	ids, err := r.commit(branch, 1, message, func(int) map[string]File { return files })
	if err != nil {
		return object.ID{}, err
	}
	return ids[0], nil
}

// commit creates n commits with one call of git fast-import and returns them, oldest first. The function files returns
// the changes of each commit.
func (r *Repo) commit(branch string, n int, message string, files func(int) map[string]File) ([]object.ID, error) {
	ref := "refs/heads/" + branch
	from := ""
	if tip, err := r.tip(ref); err != nil {
		return nil, fmt.Errorf("commit to %s: %w", branch, err)
	} else if tip != "" {
		from = "from " + tip + "\n"
	}
	in, out := io.Pipe()
	go func() {
		buffered := bufio.NewWriterSize(out, 64<<10)
		w := importWriter{w: buffered}
		for i := range n {
			text := message
			if n > 1 {
				text = fmt.Sprintf("%s %d", message, i+1)
			}
			w.printf("commit %s\nmark :%d\ncommitter gittest <gittest@localhost> %d +0000\n", ref, i+1, epoch+60*(r.commits+i))
			w.data([]byte(strings.TrimSuffix(text, "\n") + "\n"))
			w.printf("%s", from)
			from = "" // only the first commit names its parent, because each commit of a run follows the previous one
			set := files(i)
			for _, path := range slices.Sorted(maps.Keys(set)) {
				w.file(path, set[path])
			}
			w.printf("get-mark :%d\n", i+1)
		}
		w.printf("done\n")
		out.CloseWithError(errors.Join(w.err, buffered.Flush())) // without an error, this ends the stream normally
	}()
	// This also ends the writing goroutine if git stops reading early.
	defer in.Close()
	// unpackLimit=1 stores the objects in a pack, because creating thousands of loose files would take most of the
	// time.
	printed, err := run(context.Background(), r.Path, in, nil, "-c", "fastimport.unpackLimit=1", "fast-import", "--quiet",
		"--done", "--date-format=raw")
	if err != nil {
		return nil, fmt.Errorf("commit to %s: %w", branch, err)
	}
	r.commits += n
	var ids []object.ID
	for line := range strings.SplitSeq(printed, "\n") {
		id, err := object.ParseID(line)
		if err != nil {
			return nil, fmt.Errorf("commit to %s: %w", branch, err)
		}
		ids = append(ids, id)
	}
	if len(ids) != n {
		return nil, fmt.Errorf("commit to %s: git printed %d IDs of %d commits", branch, len(ids), n)
	}
	return ids, nil
}

// tip returns the object that a ref names, or "" if it does not exist.
func (r *Repo) tip(ref string) (string, error) {
	if loose, err := os.ReadFile(filepath.Join(r.Path, ref)); err == nil {
		id := strings.TrimSpace(string(loose))
		if to, symbolic := strings.CutPrefix(id, "ref: "); symbolic {
			return r.tip(to)
		}
		return id, nil
	}
	packed, err := os.ReadFile(filepath.Join(r.Path, "packed-refs"))
	for line := range strings.Lines(string(packed)) {
		if id, found := strings.CutSuffix(line, " "+ref+"\n"); found {
			return id, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return "", err
}

// importWriter writes the input of git fast-import. After an error it ignores further calls.
type importWriter struct {
	w   io.Writer
	err error
}

func (w *importWriter) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

func (w *importWriter) data(b []byte) {
	w.printf("data %d\n", len(b))
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
	w.printf("\n")
}

func (w *importWriter) file(path string, f File) {
	mode := f.Mode
	if mode == "" {
		mode = "100644"
	}
	switch {
	case f.Delete:
		w.printf("D %s\n", quotePath(path))
	case mode == gitlink:
		w.printf("M %s %s %s\n", mode, f.Data, quotePath(path))
	default:
		w.printf("M %s inline %s\n", mode, quotePath(path))
		w.data(f.Data)
	}
}

const (
	executable = "100755"
	symlink    = "120000"
	gitlink    = "160000"
)

// quotePath quotes any bytes as a C-style string for fast-import.
func quotePath(path string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(path) {
		switch c := path[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Tag creates or moves a lightweight tag.
func (r *Repo) Tag(name string, id object.ID) error {
	_, err := r.git("update-ref", "refs/tags/"+name, id.String())
	return err
}

// AnnotatedTag creates an annotated tag and returns the ID of its tag object.
func (r *Repo) AnnotatedTag(name string, id object.ID, message string) (object.ID, error) {
	if _, err := r.git("tag", "--annotate", "--message="+message, name, id.String()); err != nil {
		return object.ID{}, err
	}
	tag, err := r.git("rev-parse", "refs/tags/"+name)
	if err != nil {
		return object.ID{}, err
	}
	return object.ParseID(tag)
}
