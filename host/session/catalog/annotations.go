package catalog

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
)

// maxRenames is the maximum number of new files that are compared with an annotated file that does not exist any more,
// to find out whether it was renamed.
const maxRenames = 100

// SessionAnnotations lists the annotation threads of a session, with the present positions of files and lines.
func (rev Reviews) SessionAnnotations(ctx context.Context,
	r control.SessionAnnotationsRequest) (control.SessionAnnotationsReply, error) {
	reply := control.SessionAnnotationsReply{Threads: []control.AnnotationThread{}}
	if err := listAnnotations(ctx, rev.Catalog, r, &reply); err != nil {
		return reply, fault.ExplainSessionAt("list annotations of", cmp.Or(r.ID, r.Of), err)
	}
	return reply, nil
}

// listAnnotations implements SessionAnnotations, without hints in its errors.
func listAnnotations(ctx context.Context, all *Catalog, r control.SessionAnnotationsRequest,
	reply *control.SessionAnnotationsReply) error {
	o, err := all.openAt(ctx, r.Of, r.SessionRemote, true)
	if err != nil {
		return err
	}
	defer o.Close()
	reply.Session = o.Session
	notes, err := openAnnotations(ctx, all, o)
	if errors.Is(err, fault.ErrNoCheckpoint) && r.ID == "" { // nothing has changed yet, so there is no repository
		return nil
	}
	if err != nil {
		return err
	}
	defer notes.close()
	file, err := notes.read(ctx)
	if err != nil {
		return err
	}
	p, tree := session.Checkpoint{}, object.ID{}
	if o.Repo != nil || r.ID != "" {
		if p, tree, err = o.checkpointOrBase(ctx, r.ID); err != nil {
			return err
		}
	}
	if p.ID != "" {
		tree = p.Tree
	}
	reply.Checkpoint = string(p.ID)
	files := &annotatedFiles{o: o, added: map[[2]object.ID][]annotate.File{}, hunks: map[[2]object.ID]*hunks{}}
	for _, t := range annotate.Threads(annotate.Parse(file)) {
		if t.Resolved && !r.All {
			continue
		}
		shown := shownThread(t)
		if t.On.Path != "" && !tree.IsZero() {
			now, err := annotate.Where(ctx, files, t.On, tree)
			if err != nil {
				if ctx.Err() != nil {
					return err
				}
				all.Log.Info("find annotated lines", zap.String("session", o.Session), zap.String("thread", t.ID), zap.Error(err))
				now = annotate.Now{State: annotate.Unknown}
			}
			shown.Now = &control.AnnotationPlace{State: string(now.State), Path: now.Path, Line: now.Line, End: now.End}
			if !now.Blob.IsZero() {
				shown.Now.Blob = now.Blob.String()
			}
		}
		if r.Path == "" || below(t.On.Path, r.Path) || shown.Now != nil && below(shown.Now.Path, r.Path) {
			reply.Threads = append(reply.Threads, shown)
		}
	}
	return nil
}

// below reports whether the path name is the path dir, or is in the directory dir.
func below(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// shownThread converts a thread of annotations into the form of a reply.
func shownThread(t annotate.Thread) control.AnnotationThread {
	s := control.AnnotationThread{ID: t.ID, State: "open", Annotations: []control.Annotation{},
		On: control.AnnotationPlace{Checkpoint: t.On.Checkpoint, Commit: t.On.Commit, Path: t.On.Path, Blob: t.On.Blob,
			Line: t.On.Line,
			End:  t.On.End, Quote: t.On.Quote}}
	if t.Resolved {
		s.State = "resolved"
	}
	for _, a := range t.Acts {
		s.Annotations = append(s.Annotations, control.Annotation{ID: a.ID, Time: a.Time.UTC(), Actor: a.Actor,
			Op: string(a.Op), Text: a.Text})
	}
	return s
}

// annotatedFiles reads the trees and contents of a session for annotate.Where. It caches the results for the other
// threads of the same request.
type annotatedFiles struct {
	o     *opened
	added map[[2]object.ID][]annotate.File // files that the second tree has at paths that the first one does not have
	hunks map[[2]object.ID]*hunks          // differences between two contents
}

var _ annotate.Files = (*annotatedFiles)(nil)

// hunks is a cached result of annotatedFiles.Hunks.
type hunks struct {
	list []diff.Hunk
	text bool
}

// Entry implements annotate.Files.
func (f *annotatedFiles) Entry(ctx context.Context, tree object.ID, path string) (object.TreeEntry, error) {
	return treediff.EntryAt(ctx, f.o.tree, tree, path)
}

// Content implements annotate.Contents. It fetches the contents if they are missing.
func (f *annotatedFiles) Content(ctx context.Context, id object.ID) ([]byte, error) {
	if err := f.o.fetchMissing(ctx, id); err != nil {
		return nil, err
	}
	git := pair{a: f.o, b: f.o}.git()
	size, err := git.Output(ctx, "", "cat-file", "-s", id.String())
	if err != nil {
		return nil, err
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(string(size)), 10, 64); err != nil || n > annotate.MaxLined {
		return nil, cmp.Or(err, annotate.ErrLines)
	}
	return git.Output(ctx, "", "cat-file", "blob", id.String())
}

// Renamed implements annotate.Files. It returns a file with the same contents or, if there is none, a file that git
// regards as similar.
func (f *annotatedFiles) Renamed(ctx context.Context, from, to object.ID, name string, blob object.ID) (string, error) {
	added, err := f.addedFiles(ctx, from, to)
	known := err == nil
	if err != nil { // gc has dropped the checkpoint, so compare with the base tree
		base, baseErr := f.o.baseTree(ctx)
		if baseErr != nil {
			return "", errors.Join(err, baseErr)
		}
		if added, err = f.addedFiles(ctx, base, to); err != nil {
			return "", err
		}
	}
	added, same := annotate.Likely(added, name, blob)
	if same != "" || len(added) == 0 || !known {
		return same, nil
	}
	return f.similar(ctx, from, to, annotate.File{Path: name, Blob: blob}, added[:min(len(added), maxRenames)])
}

// addedFiles returns the files that the tree to has at paths that the tree from does not have.
func (f *annotatedFiles) addedFiles(ctx context.Context, from, to object.ID) ([]annotate.File, error) {
	key := [2]object.ID{from, to}
	if added, ok := f.added[key]; ok {
		return added, nil
	}
	added := []annotate.File{}
	err := treediff.Trees(ctx, f.o.tree, from, to, func(path string, from, to object.TreeEntry) error {
		if !from.Mode.IsBlob() && to.Mode.IsBlob() {
			added = append(added, annotate.File{Path: path, Blob: to.ID})
		}
		return nil
	})
	if err == nil {
		f.added[key] = added
	}
	return added, err
}

// similar returns the path of the file among added that git regards as the renamed file, or "" if there is none.
func (f *annotatedFiles) similar(ctx context.Context, from, to object.ID, file annotate.File,
	added []annotate.File) (string, error) {
	ids, paths := []object.ID{file.Blob}, []string{file.Path}
	for _, t := range added {
		ids, paths = append(ids, t.Blob), append(paths, t.Path)
	}
	if err := f.o.fetchMissing(ctx, ids...); err != nil {
		return "", err
	}
	format := f.o.Repo.Format()
	args := []string{"--literal-pathspecs", "diff-tree", "-r", "-z", "--find-renames", "-l0", "--diff-filter=R",
		"--name-status",
		"--no-ext-diff", treediff.Name(format, from), treediff.Name(format, to), "--"}
	out, err := pair{a: f.o, b: f.o}.git().Output(ctx, "", append(args, paths...)...)
	if err != nil {
		return "", err
	}
	// The records are "RSCORE\0FROM\0TO\0".
	fields := strings.Split(string(out), "\x00")
	for i := 0; i+2 < len(fields); i += 3 {
		if fields[i+1] == file.Path {
			return fields[i+2], nil
		}
	}
	return "", nil
}

// Hunks implements annotate.Files.
func (f *annotatedFiles) Hunks(ctx context.Context, from, to object.ID) ([]diff.Hunk, bool, error) {
	key := [2]object.ID{from, to}
	if h := f.hunks[key]; h != nil {
		return h.list, h.text, nil
	}
	if err := f.o.fetchMissing(ctx, from, to); err != nil {
		return nil, false, err
	}
	git := pair{a: f.o, b: f.o}.git()
	out, err := git.Output(ctx, "", "diff", "-U0", "--no-color", "--no-ext-diff", "--no-textconv",
		from.String(), to.String())
	if err != nil {
		return nil, false, err
	}
	h := &hunks{}
	h.list, h.text = diff.Hunks(out)
	f.hunks[key] = h
	return h.list, h.text, nil
}
