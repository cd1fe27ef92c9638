package convert

import (
	"slices"
	"strings"
)

// git ignores longer lines and larger files, with a warning.
const (
	maxLine = 2048      // bytes, the line's end not counted
	maxFile = 100 << 20 // bytes
)

// attr names an attribute; those from macroBase on are macros of the root's file.
type attr int32

const (
	attrText attr = iota
	attrCRLF
	attrEOL
	attrIdent
	attrFilter
	attrEncoding
	numValues              // attributes below are those whose values decide something
	attrBinary = numValues // git's own macro; may be defined anew
	macroBase  = attrBinary + 1

	attrNamed attr = -1 // not one of the above: looked up in the root's macros by name
)

func attrOf(name string) attr {
	switch name {
	case "text":
		return attrText
	case "crlf":
		return attrCRLF
	case "eol":
		return attrEOL
	case "ident":
		return attrIdent
	case "filter":
		return attrFilter
	case "working-tree-encoding":
		return attrEncoding
	case "binary":
		return attrBinary
	}
	return attrNamed
}

// inert reports whether name is an attribute of git or of a forge that has nothing to do with conversion. A file
// that sets only such ones is not worth keeping, although a root could define a macro of one of these names.
func inert(name string) bool {
	switch name {
	case "diff", "merge", "whitespace", "export-ignore", "export-subst", "delta", "encoding",
		"conflict-marker-size", "lockable":
		return true
	}
	return strings.HasPrefix(name, "linguist-") || strings.HasPrefix(name, "gitlab-")
}

type state uint8

const (
	undecided   state = iota
	unspecified       // "!text": as if no line before had spoken of it
	set
	unset
	valued
)

type value struct {
	state state
	text  string // of a valued one
}

// assignment is one word behind a pattern or a macro's name.
type assignment struct {
	attr  attr
	name  string // of attrNamed only
	value value
}

type rule struct {
	pattern pattern
	assigns []assignment // in the order of the line; the last one of an attribute wins
}

// File is one parsed file of attributes.
type File struct {
	rules  []rule
	macros [][]assignment  // what each attr brings along where it is set; empty unless it is a macro. Root only
	names  map[string]attr // macros from macroBase on
}

// builtin is what git knows without any file.
var builtin = Parse(nil, true)

// Parse is Settings.Parse where the user's settings say nothing of attributes.
func Parse(content []byte, root bool) *File { return Settings{}.Parse(content, root) }

// Parse reads a .gitattributes; root says that it is the root directory's, where macros may be defined. Like git
// it takes what it can: bad lines count as absent, a NUL ends the file, a byte order mark is part of the first
// pattern. git does not look at the mode of a .gitattributes when it checks out a commit, so callers pass a
// symlink's target as well.
func (s Settings) Parse(content []byte, root bool) *File {
	f := &File{}
	p := parser{macrosMay: root, fold: s.IgnoreCase}
	p.read(content)
	if root {
		f.define(s.Outside.around(p.macros))
	}
	for _, r := range p.rules {
		if root {
			r.assigns = f.resolve(r.assigns)
		}
		if len(r.assigns) > 0 {
			r.assigns = slices.Clip(r.assigns)
			f.rules = append(f.rules, r)
		}
	}
	f.rules = slices.Clip(f.rules)
	return f
}

// define takes over the macros that touch a conversion, directly or through another macro.
func (f *File) define(defs map[string][]assignment) {
	f.names = map[string]attr{}
	f.macros = make([][]assignment, macroBase)
	f.macros[attrBinary] = []assignment{
		{attrNamed, "diff", value{state: unset}},
		{attrNamed, "merge", value{state: unset}},
		{attrText, "", value{state: unset}},
	}
	matters := func(a assignment) bool {
		_, macro := defs[a.name]
		return a.attr != attrNamed || macro
	}
	ids := make([]attr, 0, len(defs))
	bodies := make([][]assignment, 0, len(defs))
	for name, body := range defs {
		id := attrOf(name)
		if id == attrNamed {
			if !slices.ContainsFunc(body, matters) {
				continue
			}
			id = attr(len(f.macros))
			f.names[name] = id
			f.macros = append(f.macros, nil)
		}
		ids, bodies = append(ids, id), append(bodies, body)
	}
	for i, id := range ids {
		f.macros[id] = bodies[i]
	}
	for id, body := range f.macros {
		f.macros[id] = slices.Clip(f.resolve(body))
	}
}

// resolve drops, in place, what is neither decisive nor a macro of the root file f.
func (f *File) resolve(as []assignment) []assignment {
	keep := as[:0]
	for _, a := range as {
		if a.attr == attrNamed {
			id, ok := f.names[a.name]
			if !ok {
				continue
			}
			a.attr, a.name = id, ""
		}
		keep = append(keep, a)
	}
	return keep
}

// Matters reports whether the file can change a conversion. Where it cannot, Decide and Unsupported answer the same
// without it. Names of attributes that git itself gives another meaning are not taken for macros here.
func (f *File) Matters() bool {
	if f == nil {
		return false
	}
	if f.macros != nil { // root: rules hold nothing else than what matters
		return len(f.rules) > 0 || len(f.names) > 0 || f.redefines()
	}
	for _, r := range f.rules {
		for _, a := range r.assigns {
			if a.attr != attrNamed || !inert(a.name) {
				return true
			}
		}
	}
	return false
}

// redefines reports whether the file makes a macro of an attribute that has a meaning, or binary anew.
func (f *File) redefines() bool {
	for id := range numValues {
		if len(f.macros[id]) > 0 {
			return true
		}
	}
	b := f.macros[attrBinary]
	return len(b) != 1 || b[0] != assignment{attrText, "", value{state: unset}}
}

// walk is the state of one decision.
type walk struct {
	values [numValues]value
	open   uint8     // values still sought, a bit each
	few    [4]uint64 // attributes decided, a bit each
	more   []uint64  // those beyond few
	root   *File
}

// decide reports whether id was undecided until now.
func (w *walk) decide(id attr) bool {
	word, bit := int(id/64), uint64(1)<<(id%64)
	p := &w.few[word%len(w.few)]
	if word >= len(w.few) {
		p = &w.more[word-len(w.few)]
	}
	if *p&bit != 0 {
		return false
	}
	*p |= bit
	return true
}

// collect finds the values that the files give path, of the attributes whose bits are in sought at least.
// git's order: what the git directory says, then the last line of the deepest file of the tree, at the end the
// user's and the machine's files; within a line the last word speaks first. What has been decided stays so, and a
// macro's words follow at once where it is decided to be set.
func (s Settings) collect(files []*File, path string, sought uint8) [numValues]value {
	w := walk{open: sought, root: builtin}
	switch {
	case len(files) > 0 && files[0] != nil && files[0].macros != nil:
		w.root = files[0]
	case s.Outside != nil:
		w.root = s.Outside.root
	}
	if words := (len(w.root.macros) + 63) / 64; words > len(w.few) {
		w.more = make([]uint64, words-len(w.few))
	}
	if s.IgnoreCase {
		path = lower(path)
	}
	at := strings.LastIndexByte(path, '/') + 1 // where the path relative to the directory in turn starts
	base := path[at:]
	if s.Outside != nil && w.file(s.Outside.above, path, base) {
		return w.values
	}
	for depth := strings.Count(path, "/"); depth >= 0; depth-- {
		if depth < len(files) && w.file(files[depth], path[at:], base) {
			return w.values
		}
		if depth > 0 {
			at = strings.LastIndexByte(path[:at-1], '/') + 1
		}
	}
	if s.Outside != nil {
		for _, f := range s.Outside.below {
			if w.file(f, path, base) {
				break
			}
		}
	}
	return w.values
}

// file asks one file, nil for none; true: nothing is sought any more.
func (w *walk) file(f *File, path, base string) bool {
	if f == nil {
		return false
	}
	for i := len(f.rules) - 1; i >= 0; i-- {
		if f.rules[i].pattern.match(path, base) {
			w.fill(f.rules[i].assigns)
			if w.open == 0 {
				return true
			}
		}
	}
	return false
}

// fill decides what is undecided. It keeps its own stack: a file may chain millions of macros.
func (w *walk) fill(as []assignment) {
	var few [8][]assignment
	stack := append(few[:0], as)
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if len(*top) == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		a := &(*top)[len(*top)-1]
		*top = (*top)[:len(*top)-1]
		id := a.attr
		if id == attrNamed {
			var macro bool
			if id, macro = w.root.names[a.name]; !macro {
				continue
			}
		}
		if !w.decide(id) {
			continue
		}
		if id < numValues {
			w.values[id] = a.value
			w.open &^= 1 << id
		}
		if a.value.state == set {
			stack = append(stack, w.root.macros[id])
		}
	}
}
