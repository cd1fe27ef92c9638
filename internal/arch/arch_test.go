// Package arch checks the structure of the program: which packages may import which others, and that source files stay
// readable.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "github.com/artifactfs/artifactfs/"
	root     = "../.."
	maxLines = 500 // maximum number of lines of a source file that is not a test
)

// wing is a top folder that contains Go packages.
type wing struct {
	name string
	is   string   // what the folder contains, and what it must not know
	may  []string // other folders that its packages may import, besides internal; tests may import all folders
}

// wings lists the top folders in the order in which a new developer should read them.
var wings = []wing{
	{"cmd", "The command line: flags, output, exit codes. The work is done in other folders.",
		[]string{"git", "fetch", "control", "session", "server", "relay", "host", "container"}},
	{"control", "The protocol between commands and the daemon of a state directory.", []string{"git", "fetch"}},
	{"host", "One machine with mounts: the daemon, its mounts, their sessions on this host, and the state directory.",
		[]string{"git", "cache", "fetch", "worktree", "fuse", "control", "session", "server"}},
	{"fuse", "Answers the requests of the kernel from a working tree.", []string{"git", "worktree"}},
	{"worktree",
		"The names of a working tree, and the durable layer of its changes. It knows neither FUSE nor git directories.",
		[]string{"git"}},
	{"fetch",
		"Commits, trees and contents of one remote: which are needed, which are fetched ahead, and where they are stored.",
		[]string{"git", "cache", "prioritize"}},
	{"cache", "Contents that can be fetched again, on disk and in memory.", []string{"git"}},
	{"prioritize", "The order in which contents are fetched.", []string{"git"}},
	{"git", "Formats, objects, protocol, directories and commands of git. It knows nothing of the product.", nil},
	{"session",
		"What a session is: checkpoints, refs, transcripts, and how they reach a session remote. It knows neither hosts nor mounts.",
		[]string{"git", "worktree", "control"}},
	{"server", "`artifactfs serve`: repositories of sessions over git and REST, and the page. It does not know the host.",
		[]string{"git", "session", "control"}},
	{"relay", "A server between many hosts and their git servers.", []string{"git", "server"}},
	{"container", "Mounts as volumes of pods.", []string{"git", "control", "host"}},
	{"internal", "What all folders use: files, processes, clocks, metrics. It knows none of them.", nil},
	{"integration", "Tests of real mounts against real git, and what they need.", []string{"git", "session", "server"}},
}

// libraries lists, for each library, the packages that may import it.
var libraries = map[string][]string{
	"github.com/hanwen/go-fuse/": {"fuse", "host/daemon"},
	"github.com/go-git/": {"git/object", "git/odb", "git/transport", "git/gitdir", "session",
		"session/capture", "session/packs", "session/transcript"},
	"github.com/dgraph-io/ristretto/":  {"cache"},
	"github.com/modelcontextprotocol/": {"host/mcp", "integration"},
	"github.com/google/jsonschema-go/": {"host/mcp", "server/openapi/openapitest"},
	"github.com/spf13/": {"cmd/artifactfs", "cmd/artifactfs/agents", "cmd/artifactfs/cli",
		"cmd/artifactfs/hosting", "cmd/artifactfs/locking", "cmd/artifactfs/mounts", "cmd/artifactfs/serving",
		"cmd/artifactfs/server", "cmd/artifactfs/sessions", "cmd/artifactfs/worktrees", "cmd/artifactfs-csi"},
	"github.com/BurntSushi/toml":              {"host/config"},
	"github.com/pjbgf/sha1cd":                 {"git/object"},
	"github.com/alecthomas/chroma/":           {"server/ui"},
	"golang.org/x/net/":                       {"git/transport", "git/transport/endpoint"},
	"modernc.org/sqlite":                      {"server/records"},
	"github.com/jackc/pgx/":                   {"server/records"},
	"github.com/minio/minio-go/":              {"server/objects"},
	"github.com/container-storage-interface/": {"container/csi"},
	"google.golang.org/grpc":                  {"container/csi"},
	"k8s.io/kubelet/":                         {"container/csi"},
}

// owners lists primitives of the host that only the named packages may use. Tests, and the packages that test the
// product from outside, may use all of them.
var owners = []struct {
	what, why string
	packages  []string
	uses      func(n ast.Node) bool
}{
	{"starts git", "use git/gitcmd", []string{"git/gitcmd"}, startsGit},
	{"reads /proc", "use internal/proc or internal/mountinfo", []string{"internal/proc"}, namesProc},
}

// startsGit reports whether a node is a call of package exec with "git" among its arguments.
func startsGit(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && x.Name == "exec" && slices.ContainsFunc(call.Args, func(a ast.Expr) bool { return text(a) == "git" })
}

// namesProc reports whether a node is a string that is a path below /proc.
func namesProc(n ast.Node) bool {
	e, ok := n.(ast.Expr)
	return ok && (text(e) == "/proc" || strings.HasPrefix(text(e), "/proc/"))
}

// text returns the value of a string literal, or "" for other expressions.
func text(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}

func TestPrimitivesHaveOneOwner(t *testing.T) {
	for p, file := range sources(t) {
		if strings.HasPrefix(p.ImportPath, "integration") || strings.HasPrefix(p.ImportPath, "integration/harness") ||
			strings.HasPrefix(p.ImportPath, "internal/arch") {
			continue
		}
		for _, o := range owners {
			if slices.Contains(o.packages, p.ImportPath) {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if n != nil && o.uses(n) {
					t.Errorf("%s: package %s contains %s: %s", p.at(n), p.ImportPath, o.what, o.why)
				}
				return true
			})
		}
	}
}

// TestDeferredFunctionsUseNoNamedResult checks that deferred functions do not use named results. A return statement
// sets the named results before the deferred functions run. In "return nil, err", a deferred function that cleans up
// after an error gets nil from a named result, and panics when it uses a field or a method of it.
func TestDeferredFunctionsUseNoNamedResult(t *testing.T) {
	for p, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			var results *ast.FieldList
			var body *ast.BlockStmt
			switch f := n.(type) {
			case *ast.FuncDecl:
				results, body = f.Type.Results, f.Body
			case *ast.FuncLit:
				results, body = f.Type.Results, f.Body
			}
			if results == nil || body == nil {
				return true
			}
			named := map[string]bool{}
			for _, field := range results.List {
				for _, name := range field.Names {
					named[name.Name] = name.Name != "err"
				}
			}
			ast.Inspect(body, func(n ast.Node) bool {
				if d, ok := n.(*ast.DeferStmt); ok {
					ast.Inspect(d.Call.Fun, func(n ast.Node) bool {
						if s, ok := n.(*ast.SelectorExpr); ok {
							if x, ok := s.X.(*ast.Ident); ok && named[x.Name] {
								t.Errorf("%s: deferred function uses the named result %s, which may be nil: use a variable", p.at(n), x.Name)
							}
						}
						return true
					})
				}
				return true
			})
			return true
		})
	}
}

// pkg has the fields of a package in the output of `go list -json`.
type pkg struct {
	ImportPath, Name, Doc string
	Imports               []string
	GoFiles, TestGoFiles  []string
	Error                 *struct{ Err string }
}

// at returns the position of a node in a source file of p.
func (p parsed) at(n ast.Node) token.Position { return p.fset.Position(n.Pos()) }

// parsed is a package of which a source file was parsed.
type parsed struct {
	pkg
	fset *token.FileSet
}

// sources returns the parsed source files of all packages, without tests.
func sources(t *testing.T) iter.Seq2[parsed, *ast.File] {
	return func(yield func(parsed, *ast.File) bool) {
		for _, p := range packages(t) {
			for _, name := range p.GoFiles {
				fset := token.NewFileSet()
				file, err := parser.ParseFile(fset, filepath.Join(root, p.ImportPath, name), nil, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				if !yield(parsed{p, fset}, file) {
					return
				}
			}
		}
	}
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Doc,Imports,GoFiles,TestGoFiles,Error", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Error != nil {
			t.Errorf("load package %s: %s", p.ImportPath, p.Error.Err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

func TestWingsKnowWhatTheyMay(t *testing.T) {
	imports := map[string]map[string]bool{} // for each folder, the set of folders that it imports
	for _, w := range wings {
		imports[w.name] = map[string]bool{}
	}
	for _, p := range packages(t) {
		from, _, _ := strings.Cut(p.ImportPath, "/")
		at := slices.IndexFunc(wings, func(w wing) bool { return w.name == from })
		if at < 0 {
			t.Errorf("package %s is in a folder that this test does not list", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			name, ours := strings.CutPrefix(i, module)
			if p.ImportPath == "integration/harness/gittest" && strings.Contains(i, ".") && name != "git/object" {
				t.Errorf("integration/harness/gittest imports %s: it judges the other packages and must not depend on them", i)
			}
			to, _, _ := strings.Cut(name, "/")
			if !ours || to == from {
				continue
			}
			if to != "internal" && !slices.Contains(wings[at].may, to) {
				t.Errorf("%s imports %s, which %s must not know", p.ImportPath, name, from)
			}
			imports[from][to] = true
		}
	}
	for _, w := range wings {
		for _, other := range w.may {
			if !imports[w.name][other] {
				t.Errorf("%s does not import %s: remove that from its line", w.name, other)
			}
			if imports[other][w.name] {
				t.Errorf("%s and %s import each other", w.name, other)
			}
		}
	}
}

func TestLibrariesStayWhereTheyBelong(t *testing.T) {
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			for library, may := range libraries {
				if strings.HasPrefix(i, library) && !slices.Contains(may, p.ImportPath) {
					t.Errorf("%s imports %s, which only %s may", p.ImportPath, i, strings.Join(may, ", "))
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		for _, word := range []string{"util", "common", "model", "helper"} {
			if strings.HasPrefix(p.Name, word) {
				t.Errorf("%s: %s is no noun of the field", p.ImportPath, p.Name)
			}
		}
	}
}

func TestSourcesAreShortAndFormatted(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (name[0] == '.' || name == "testdata" || name == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		seen++
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := bytes.Count(source, []byte("\n")); n > maxLines && !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s: %d lines, limit is %d", path, n, maxLines)
		}
		if formatted, err := format.Source(source); err != nil || !bytes.Equal(source, formatted) {
			t.Errorf("%s: not as gofmt writes it (%v)", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Errorf("only %d sources found", seen)
	}
}
