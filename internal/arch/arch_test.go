// Package arch keeps the cut of the program: which package may know which, and that sources stay readable.
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
	maxLines = 500 // of a source file that is no test
)

// floors lists every package from the ground up. A package imports lower floors only, never its own.
var floors = [][]string{
	{"fetch/tasks", "internal/certfile", "internal/clock", "internal/collector", "git/gitcmd", "git/pktline", "internal/proc", "git/varint", "host/hostui/treemap", "control/profile", "session/ulid"},
	{"git/refname", "control/names5"},
	{"git/object", "internal/disk", "git/gitsocket", "integration/harness/await", "integration/harness/daemons", "internal/keeper", "internal/metrics", "internal/metrics/metricstest", "internal/mountinfo", "worktree/overlay/state", "worktree/acl"},
	{"git/object/loose", "host/fdstore", "git/guard", "internal/memlimit", "server/places", "internal/dist", "fetch/notices", "fuse/caller", "fetch/fetchmap", "control/spawn", "fetch/readprofile", "fetch/treewalk", "relay/grants", "relay/packs", "relay/wire"},
	{"worktree/journal", "git/transport/endpoint", "git/transport/tokenfile", "git/transport/via", "internal/disk/mapped", "git/odb/named"},
	{"prioritize", "git/index", "git/gitdir/fsmonitor/query", "git/convert", "git/filter", "git/transport", "git/odb", "cache", "worktree/overlay/wal", "control", "host/config", "session/agenthook", "git/packedrefs", "integration/harness/crowd", "integration/harness/s3test", "integration/harness/pgtest", "integration/harness/gittest", "integration/harness/torture", "internal/disk/disktest", "host/supervisor"},
	{"worktree/overlay", "control/sessionlink", "container/volume", "git/gitdir/fsmonitor", "fetch/bare", "git/odb/namedset", "fetch/pipeline", "fetch/readahead", "fetch/intake", "fetch/remoteref", "relay/plan"},
	{"fetch/foreseen", "fetch/hoststore", "container/csi"},
	{"git/credential", "fetch", "git/promisor", "session", "worktree/inode", "worktree/removed", "worktree/writers", "integration/harness/gittest/gitserve", "integration/harness/chrome", "integration/harness/install", "integration/harness/gitea", "integration/harness/workday", "integration/harness/gittest/rot13filter"},
	{"worktree/basetree", "session/packs"},
	{"worktree", "session/thin", "session/approval", "session/locks"},
	{"git/gitdir", "session/trash", "session/reffile", "session/annotate", "session/cacheentry", "session/capture", "session/writeback", "session/mirror", "session/transcript", "fuse", "worktree/worktreetest"},
	{"host/statedir", "host/mount/mountpoint", "session/locks/keeper"},
	{"host/fault", "host/statedir/statedirtest", "host/statedir/space"},
	{"host/doctor", "host/mount/bind", "host/mount/takeover", "host/mount/turns", "host/mount/background", "host/session/agent", "host/checkout", "host/mount/inotify", "host/remotes"},
	{"host/mount/watch"},
	{"host/session/resume", "session/treediff", "session/forge", "session/proposals"},
	{"host/session/promotion", "session/lifecycle"},
	{"host/session/catalog"},
	{"host/mount/origin", "host/mount/packs", "host/mount/profiles", "host/mount/staging", "host/session/locks"},
	{"host/mount/moves", "host/mount/gitside"},
	{"host/mount/follow"},
	{"host/mount", "host/mcp", "server/records", "server/objects", "server/openapi", "server/egress"},
	{"host/daemon", "relay/shelf", "server/replica", "server/access", "server/gate", "server/events", "server/meter", "server/quota", "server/openapi/openapitest", "server/clientgen"},
	{"relay", "server/replica/replicatest", "server/receive", "server/gitread", "server/archive"},
	{"server/githttp", "server/upkeep", "server/retention", "server/imports", "server/webhooks", "server/review", "server/comparing"},
	{"server/api", "server/ui"},
	{"server", "host/hostui"},
	{"server/client"},
	{"cmd/artifactfs/cli"},
	{"cmd/artifactfs/serving", "cmd/artifactfs/hosts"},
	{"cmd/artifactfs/hosting"},
	{"cmd/artifactfs/mounts"},
	{"cmd/artifactfs/cachevalue", "cmd/artifactfs/hooks", "cmd/artifactfs/locking"},
	{"cmd/artifactfs/sessions"},
	{"cmd/artifactfs", "cmd/artifactfs-fsmonitor", "cmd/artifactfs-csi"},
	{"integration/harness/cluster", "integration/harness/cluster/meter"},
	{"integration", "integration/cluster", "integration/foreign", "integration/harness/bench", "integration/harness/serverbench", "internal/arch", "internal/arch/counts"},
}

// libraries says which packages may know a library; all others must not.
var libraries = map[string][]string{
	"github.com/hanwen/go-fuse/":              {"fuse", "host/daemon"},
	"github.com/go-git/":                      {"git/object", "git/odb", "git/transport", "git/gitdir", "session", "session/capture", "session/packs", "session/transcript"},
	"github.com/dgraph-io/ristretto/":         {"cache"},
	"github.com/modelcontextprotocol/":        {"host/mcp", "integration"},
	"github.com/google/jsonschema-go/":        {"host/mcp", "server/openapi/openapitest"},
	"github.com/spf13/":                       {"cmd/artifactfs", "cmd/artifactfs/cli", "cmd/artifactfs/hooks", "cmd/artifactfs/hosting", "cmd/artifactfs/locking", "cmd/artifactfs/mounts", "cmd/artifactfs/serving", "cmd/artifactfs/sessions", "cmd/artifactfs-csi"},
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

// owners says which packages alone may use a primitive of the host. Tests, and the packages that test the product from outside, are
// free to.
var owners = []struct {
	what, why string
	packages  []string
	uses      func(n ast.Node) bool
}{
	{"starts git", "use internal/gitcmd", []string{"git/gitcmd"}, startsGit},
	{"reads /proc", "use internal/proc or internal/mountinfo", []string{"internal/proc"}, namesProc},
}

// startsGit reports calls of package exec with "git" among their arguments.
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

// namesProc reports strings that are paths below /proc.
func namesProc(n ast.Node) bool {
	e, ok := n.(ast.Expr)
	return ok && (text(e) == "/proc" || strings.HasPrefix(text(e), "/proc/"))
}

// text returns the value of a string literal, "" for anything else.
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
		if strings.HasPrefix(p.ImportPath, "integration") || strings.HasPrefix(p.ImportPath, "integration/harness") || strings.HasPrefix(p.ImportPath, "internal/arch") {
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

// A return statement sets the named results before the deferred functions run. In "return nil, err", a deferred function that cleans up
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

// at returns the position of a node of a source of p.
func (p parsed) at(n ast.Node) token.Position { return p.fset.Position(n.Pos()) }

// parsed is a package one of whose sources was parsed.
type parsed struct {
	pkg
	fset *token.FileSet
}

// sources returns the sources of all packages, without tests.
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

func floorOf(name string) int {
	return slices.IndexFunc(floors, func(f []string) bool { return slices.Contains(f, name) })
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range packages(t) {
		floor := floorOf(p.ImportPath)
		if floor < 0 {
			t.Errorf("package %s is on no floor: say in this test where it belongs", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			if name, ours := strings.CutPrefix(i, module); ours && floorOf(name) >= floor {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, name)
			}
			if p.ImportPath == "integration/harness/gittest" && strings.Contains(i, ".") && i != module+"git/object" {
				t.Errorf("integration/harness/gittest imports %s: it judges the other packages and must not depend on them", i)
			}
		}
	}
}

// apart are pairs of folders of which neither imports a package of the other.
var apart = [][2]string{{"git/gitdir", "session"}}

func TestFoldersStayApart(t *testing.T) {
	in := func(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			name := strings.TrimPrefix(i, module)
			for _, pair := range apart {
				if in(p.ImportPath, pair[0]) && in(name, pair[1]) || in(p.ImportPath, pair[1]) && in(name, pair[0]) {
					t.Errorf("%s imports %s: the folders %s and %s stay apart", p.ImportPath, name, pair[0], pair[1])
				}
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
