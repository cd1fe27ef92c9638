package convert

import "maps"

// Outside is what is said of attributes beside the tree. It does not change once made.
type Outside struct {
	above  *File   // the git directory's: outranks the tree
	below  []*File // the user's, then the machine's: the tree outranks them
	macros [2]map[string][]assignment
	root   *File // stands for the root's file where the tree has none
}

// NewOutside reads the contents of /etc/gitattributes, of core.attributesFile and of the git directory's
// info/attributes; all of them may define macros. ignoreCase is as in Settings. It is nil where they say nothing.
func NewOutside(machine, user, gitDir []byte, ignoreCase bool) *Outside {
	o := &Outside{}
	read := func(content []byte, scope int) *File {
		p := parser{macrosMay: true, fold: ignoreCase}
		p.read(content)
		if len(p.macros) > 0 && o.macros[scope] == nil {
			o.macros[scope] = map[string][]assignment{}
		}
		maps.Copy(o.macros[scope], p.macros)
		return &File{rules: p.rules}
	}
	below := read(machine, 0)
	o.below = []*File{read(user, 0), below}
	o.above = read(gitDir, 1)
	if len(o.above.rules)+len(o.below[0].rules)+len(o.below[1].rules)+len(o.macros[0])+len(o.macros[1]) == 0 {
		return nil
	}
	o.root = Settings{IgnoreCase: ignoreCase, Outside: o}.Parse(nil, true)
	return o
}

// around puts the macros of the root's file in between those that it outranks and those that outrank it.
func (o *Outside) around(root map[string][]assignment) map[string][]assignment {
	if o == nil || len(o.macros[0])+len(o.macros[1]) == 0 {
		return root
	}
	all := map[string][]assignment{}
	maps.Copy(all, o.macros[0])
	maps.Copy(all, root)
	maps.Copy(all, o.macros[1])
	for name, body := range all { // define works in place
		all[name] = append([]assignment(nil), body...)
	}
	return all
}
