package convert

import (
	"slices"
	"strings"
)

// Limits of git: it ignores longer lines and larger files, with a warning.
const (
	maxLine = 2048      // in bytes, without the line's end
	maxFile = 100 << 20 // in bytes
)

// attr identifies an attribute; those from macroBase on are macros that the root's file defines.
type attr int32

const (
	attrText attr = iota
	attrCRLF
	attrEOL
	attrIdent
	attrFilter
	attrEncoding
	numValues              // number of attributes whose values affect a conversion
	attrBinary = numValues // git's built-in macro; files may redefine it
	macroBase  = attrBinary + 1

	attrNamed attr = -1 // none of the above: the name is looked up in the root's macros
)

// attrOf returns the attribute with a name, or attrNamed.
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

// inert reports whether name is an attribute of git or of a forge that does not affect conversion. A file that sets only
// such attributes need not be kept, although a root file could define a macro with one of these names.
func inert(name string) bool {
	switch name {
	case "diff", "merge", "whitespace", "export-ignore", "export-subst", "delta", "encoding",
		"conflict-marker-size", "lockable":
		return true
	}
	return strings.HasPrefix(name, "linguist-") || strings.HasPrefix(name, "gitlab-")
}

// state is the state of an attribute for a path (gitattributes(5)).
type state uint8

const (
	undecided   state = iota
	unspecified       // "!text": as if no earlier line had set it
	set
	unset
	valued
)

// value is an attribute's state and, if it is valued, its text.
type value struct {
	state state
	text  string // value of a valued attribute
}

// assignment is one attribute behind a pattern or a macro's name.
type assignment struct {
	attr  attr
	name  string // only for attrNamed
	value value
}

// rule is one line of a file: a pattern and the attributes of matching paths.
type rule struct {
	pattern pattern
	assigns []assignment // in the order of the line; the last one of an attribute wins
}

// File is a parsed attributes file.
//
// The root's file has names and macros resolved when it is parsed. Files of other directories keep attributes that may
// be macros by name (attrNamed), because the same file may be used below different root files.
type File struct {
	rules []rule
	// Attributes that each macro sets, by attr; empty for an attribute that is no macro. Only in the root's file.
	macros [][]assignment
	names  map[string]attr // macros from macroBase on, by name
}

// builtin contains the macros that git defines without any file.
var builtin = Parse(nil, true)

// Parse is Settings.Parse for a user without attribute settings.
func Parse(content []byte, root bool) *File { return Settings{}.Parse(content, root) }

// Parse parses a .gitattributes file; root states that it is in the root directory, where macros may be defined. Like
// git it accepts every file: it ignores bad lines, a NUL ends the file, and a byte order mark is part of the first
// pattern. When git checks out a commit, it ignores the mode of .gitattributes, so callers must pass a symbolic link's
// target as its content.
func (s Settings) Parse(content []byte, root bool) *File {
	f := &File{}
	p := parser{macrosMay: root, fold: s.IgnoreCase}
	p.read(content)
	if root {
		f.define(s.Outside.mergeMacros(p.macros))
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

// define adds the macros that affect a conversion, directly or through another macro.
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

// resolve removes from as, in place, the attributes that neither affect a conversion nor are macros of the root file f.
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

// Matters reports whether the file can affect a conversion. If not, Decide returns the same without the file. Attributes
// that git itself defines are assumed not to be redefined as macros.
func (f *File) Matters() bool {
	if f == nil {
		return false
	}
	if f.macros != nil { // root: define and resolve kept only what affects a conversion
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

// redefines reports whether the file makes a macro of an attribute that affects conversion, or redefines binary.
func (f *File) redefines() bool {
	for id := range numValues {
		if len(f.macros[id]) > 0 {
			return true
		}
	}
	b := f.macros[attrBinary]
	return len(b) != 1 || b[0] != assignment{attrText, "", value{state: unset}}
}

// walk is the state of one lookup of a path's attributes. A new walk is created for each path; it allocates only if the
// root file defines more than about 250 macros.
type walk struct {
	values [numValues]value
	open   uint8     // bit set of the attributes still sought
	few    [4]uint64 // bit set of the decided attributes below 256
	more   []uint64  // bit set of the others
	// root is the file that defines the macros.
	root *File
}

// decide marks id as decided, and reports whether it was undecided until then.
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

// collect returns the values that the files assign to path, at least those of the attributes whose bits are in sought.
// The order is git's: the git directory's info/attributes, then the files of the tree from the deepest up, then the
// user's and the machine's file; in each file the last matching line first, and in a line the last attribute first. A
// decided attribute keeps its value, and a macro's attributes follow directly when the macro is decided to be set.
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
	at := strings.LastIndexByte(path, '/') + 1 // start of the path relative to the directory of the current file
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

// file applies the rules of one file, which may be nil. It reports whether no attribute is sought any more.
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

// fill decides the attributes of as that are undecided. It uses its own stack instead of recursion: a file may chain
// millions of macros. as is read from its end, because within a line the last assignment of an attribute wins.
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
