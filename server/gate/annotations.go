package gate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/thin"
)

// annotationsPrefix is the prefix of the refs with annotations.
var annotationsPrefix = session.AnnotationsRef("")

// trashed returns the session whose annotations a ref in the trash contains:
// refs/afs/trash/SESSION/TIME/afs/ann/SESSION.
func trashed(ref string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(ref, thin.TrashPrefix)
	name, _, _ = strings.Cut(rest, "/")
	return name, ok && name != "" && strings.HasSuffix(ref, strings.TrimPrefix(session.AnnotationsRef(name), "refs"))
}

// checkTrash decides about a copy of annotations in the trash. A session is deleted by copies of its refs, and restored
// from them, so a copy must have the annotations that the repository has.
func (j *judge) checkTrash(u records.RefUpdate) error {
	name, _ := trashed(u.Name)
	if u.Removes() || u.New == j.refs.ID(session.AnnotationsRef(name)) {
		return nil
	}
	return approval.Refused("the trash can contain only annotations that the repository has")
}

// checkAnnotations decides about new annotations of a session.
func (j *judge) checkAnnotations(u records.RefUpdate) (refused, err error) {
	name, ok := strings.CutPrefix(u.Name, annotationsPrefix)
	if !ok || session.ValidName(name) != nil {
		return approval.Refused("the refs below " + annotationsPrefix + " have the names of sessions"), nil
	}
	f := reffile.File{Ref: u.Name, Name: annotate.LogFile}
	var old []byte
	switch {
	case j.refs.ID(u.Name) != u.Old && !(u.Creates() && j.refs.ID(u.Name) == ""):
		return errStale, nil
	case !u.Creates():
		if old, err = j.file(f, u.Old); err != nil && !invalid(err) {
			return nil, err
		}
	case slices.ContainsFunc(j.refs.below(thin.TrashPrefix+name+"/"), func(r records.Ref) bool {
		of, ok := trashed(r.Name)
		return ok && of == name && r.ID == u.New
	}):
		return nil, nil // the session is restored
	}
	text, err := j.file(f, u.New)
	if invalid(err) {
		return approval.Refused(err.Error()), nil
	} else if err != nil {
		return nil, err
	}
	return j.checkLines(old, text), nil
}

// checkLines returns an error unless the annotations in the parameter text are those in the parameter old and new ones
// that the token may have made. Tokens for the REST API can also remove annotations, for example because they contain a
// secret.
func (j *judge) checkLines(old, text []byte) error {
	known, ids := map[string]bool{}, map[string]bool{}
	for line := range annotations(old) {
		known[line], ids[idOf(line)] = true, true
	}
	here := map[string]bool{}
	for line := range annotations(text) {
		here[line] = true
		if known[line] {
			continue
		}
		acts := annotate.Parse([]byte(line))
		if len(acts) != 1 {
			return approval.Refused(fmt.Sprintf("annotation %.100q is not valid", line))
		}
		// Of two lines with the same id, readers would show only one.
		if ids[acts[0].ID] {
			return approval.Refused(fmt.Sprintf("the id of annotation %s is in use", acts[0].ID))
		}
		ids[acts[0].ID] = true
		if err := j.checkAct(acts[0]); err != nil {
			return err
		}
	}
	for line := range known {
		if !here[line] && !controls(j.Token) {
			return approval.Refused("annotations cannot be changed or removed, only added")
		}
	}
	return nil
}

// checkAct returns an error unless the token that pushes a new annotation may have made it.
func (j *judge) checkAct(a annotate.Act) error {
	switch actor := Actor(j.Token); {
	case a.Actor != actor:
		return approval.Refused(fmt.Sprintf("annotation %s is by %.100q, but the token is of %s", a.ID, a.Actor, actor))
	case a.Time.Sub(j.Now).Abs() > maxSkew:
		return approval.Refused(fmt.Sprintf("annotation %s has the time %s, which is not within %s of the server's", a.ID,
			a.Time.UTC().Format("2006-01-02T15:04:05Z"), maxSkew))
	}
	return nil
}

// annotations returns the lines of a file that are not empty, without their ends.
func annotations(file []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for line := range bytes.Lines(file) {
			if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !yield(string(line)) {
				return
			}
		}
	}
}

// idOf returns the id of an annotation, also of one that this version does not understand; "" if there is none.
func idOf(line string) string {
	var a struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal([]byte(line), &a) // a line without an id hides no other one
	return a.ID
}
