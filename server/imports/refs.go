package imports

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/thin"
)

const headsPrefix = "refs/heads/"

// mirrored are the prefixes of refs that an import copies. Other refs, such as refs/pull of some servers, have a
// meaning only on the other server.
var mirrored = []string{headsPrefix, "refs/tags/", "refs/notes/", "refs/afs/"}

// claims are the prefixes of the refs below mirrored that an import does not copy. This server has not checked who made
// the policy, the approvals, the annotations and the cache entries, and who holds the locks. The trash has copies of
// them.
var claims = []string{approval.PolicyRef, approval.Prefix, session.AnnotationsRef(""), session.EntryPrefix, locks.Ref,
	thin.TrashPrefix}

// refspecs returns the arguments of git fetch for an import of all refs, or of one branch if branch is not "".
func refspecs(branch string) []string {
	if branch != "" {
		return []string{"+" + headsPrefix + branch + ":" + headsPrefix + branch}
	}
	var all []string
	for _, p := range mirrored {
		all = append(all, "+"+p+"*:"+p+"*")
	}
	for _, p := range claims {
		if strings.HasSuffix(p, "/") {
			p += "*"
		}
		all = append(all, "^"+p)
	}
	return all
}

// covers reports whether an import includes the ref name. branch is "" for an import of all refs.
func covers(branch, name string) bool {
	if branch != "" {
		return name == headsPrefix+branch
	}
	if slices.ContainsFunc(claims,
		func(p string) bool { return name == p || strings.HasSuffix(p, "/") && strings.HasPrefix(name, p) }) {
		return false
	}
	return slices.ContainsFunc(mirrored, func(p string) bool { return strings.HasPrefix(name, p) })
}

// updates returns the updates that make the refs of this repository (here) equal to those of the other server (there).
// A ref that was changed here since the last import is not updated; kept is the number of these refs that the other
// server has also changed. last contains the refs of the other server at the last import.
func updates(here, there, last map[string]string, branch, zero string) (list []records.RefUpdate, kept int) {
	at := func(refs map[string]string, name string) string {
		if id, ok := refs[name]; ok {
			return id
		}
		return zero
	}
	for name, id := range there {
		switch current := at(here, name); {
		case current == id || at(last, name) == id:
		case current == at(last, name):
			list = append(list, records.RefUpdate{Name: name, Old: current, New: id})
		default:
			kept++
		}
	}
	for name, id := range last {
		if _, ok := there[name]; ok || !covers(branch, name) {
			continue
		}
		switch at(here, name) {
		case zero:
		case id:
			list = append(list, records.RefUpdate{Name: name, Old: id, New: zero})
		default:
			kept++
		}
	}
	slices.SortFunc(list, func(a, b records.RefUpdate) int { return strings.Compare(a.Name, b.Name) })
	return list, kept
}

// encodeRefs returns refs in the format of records.Import.Refs: compressed lines "ID NAME".
func encodeRefs(refs map[string]string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	names := make([]string, 0, len(refs))
	for name := range refs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		io.WriteString(w, refs[name]+" "+name+"\n") // writes to memory do not fail
	}
	w.Close()
	return b.Bytes()
}

// decodeRefs decodes the result of encodeRefs. An empty text contains no refs.
func decodeRefs(text []byte) (map[string]string, error) {
	if len(text) == 0 {
		return map[string]string{}, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	lines, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return parseRefs(string(lines)), nil
}

// parseRefs parses lines "ID NAME".
func parseRefs(lines string) map[string]string {
	refs := map[string]string{}
	for line := range strings.Lines(lines) {
		if id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			refs[name] = id
		}
	}
	return refs
}
