package named

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"sort"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// Collector collects the ids of the blobs that trees name. It takes 26 to 31 bytes for each id of SHA-1, and 38 to 43
// for SHA-256, without pointers, so that the garbage collector does not scan them. Only one goroutine may use it.
type Collector struct {
	idLen  int
	seed   uint64   // random number, so that a remote cannot choose ids that collide in slots
	n      int      // number of ids
	chunks [][]byte // the ids, in the order in which they were added; each chunk has room for chunkIDs
	// number of the id + 1, or 0 if free; an open-addressing hash table, whose length is a power of two, at most 3/4 full
	slots []uint32
}

const chunkIDs = 1 << 10

// NewCollector returns an empty Collector for ids of the format f.
func NewCollector(f object.Format) *Collector {
	return &Collector{idLen: f.Size(), seed: rand.Uint64() | 1, slots: make([]uint32, 64)}
}

// Len returns the number of ids.
func (c *Collector) Len() int { return c.n }

// AddTree adds the blobs that a tree names. If the tree contains an invalid entry, AddTree adds only the blobs before
// this entry, because git does not read further either.
func (c *Collector) AddTree(content []byte) {
	for len(content) > 0 {
		e, ok := c.entry(content)
		if !ok {
			return
		}
		if e.blob {
			c.add(content[e.size-c.idLen : e.size])
		}
		content = content[e.size:]
	}
}

// AddChanged adds the blobs that a tree names. The tree base must have been added before. Most trees of a history are
// deltas against a tree with almost the same entries, and the entries that both trees have need not be looked up.
func (c *Collector) AddChanged(base, content []byte) {
	for len(content) > 0 {
		same := commonPrefix(base, content)
		if same == len(content) {
			return
		}
		// Both slices begin at the start of an entry, so equal bytes are equal entries.
		for {
			e, ok := c.entry(content)
			if !ok {
				return
			}
			if e.size <= same {
				same -= e.size
				base, content = base[e.size:], content[e.size:]
				continue
			}
			old, ok := c.entry(base)
			if !ok { // the base has no more entries
				c.AddTree(content)
				return
			}
			order := bytes.Compare(content[e.name:e.size-c.idLen], base[old.name:old.size-c.idLen])
			if order <= 0 { // a new or a changed entry
				if e.blob {
					c.add(content[e.size-c.idLen : e.size])
				}
				content = content[e.size:]
			}
			if order >= 0 { // a removed or a changed entry
				base = base[old.size:]
			}
			break
		}
	}
}

// commonPrefix returns the number of bytes at the start of a and b that are equal.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	const block = 256 // Comparing whole blocks is several times as fast as comparing bytes.
	for i+block <= n && string(a[i:i+block]) == string(b[i:i+block]) {
		i += block
	}
	for ; i+8 <= n; i += 8 {
		if d := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); d != 0 {
			return i + bits.TrailingZeros64(d)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// entry describes the first entry of a tree.
type entry struct {
	blob bool // whether the entry names a blob
	name int  // offset of the name, which a zero byte and the id follow
	size int  // size of the entry in bytes
}

// entry parses the first entry of a tree: a mode in octal digits, a space, a name, a zero byte and an id. Like git, it
// takes an entry for a blob if it is neither a tree nor a gitlink. It returns false if the entry is invalid or
// truncated.
func (c *Collector) entry(b []byte) (e entry, ok bool) {
	const typeMask, tree, gitlink = 0o170000, 0o040000, 0o160000
	mode := uint32(0)
	if len(b) > 7 && string(b[:7]) == "100644 " { // this is the most frequent mode, so check it first
		e.name, mode = 6, 0o100644
	}
	for {
		if e.name == len(b) {
			return e, false
		}
		d := b[e.name]
		e.name++
		if d == ' ' {
			break
		}
		if d < '0' || d > '7' {
			return e, false
		}
		mode = mode<<3 | uint32(d-'0')
	}
	end := bytes.IndexByte(b[e.name:], 0)
	e.size = e.name + end + 1 + c.idLen
	e.blob = mode&typeMask != tree && mode&typeMask != gitlink
	return e, end >= 0 && e.size <= len(b)
}

// at returns the bytes of id number i.
func (c *Collector) at(i int) []byte {
	off := i % chunkIDs * c.idLen
	return c.chunks[i/chunkIDs][off : off+c.idLen : off+c.idLen]
}

// add adds an id unless it was added before.
func (c *Collector) add(id []byte) {
	s := c.slot(id)
	if c.slots[s] != 0 {
		return
	}
	if c.n%chunkIDs == 0 {
		c.chunks = append(c.chunks, make([]byte, chunkIDs*c.idLen))
	}
	c.n++
	copy(c.at(c.n-1), id)
	c.slots[s] = uint32(c.n)
	if 4*c.n <= 3*len(c.slots) {
		return
	}
	c.slots = make([]uint32, 2*len(c.slots))
	for i := range c.n {
		c.slots[c.slot(c.at(i))] = uint32(i) + 1
	}
}

// slot returns the index in slots for an id: the slot that refers to the id, or a free slot.
func (c *Collector) slot(id []byte) int {
	h := (binary.LittleEndian.Uint64(id) ^ c.seed) * (0x9e3779b97f4a7c15 ^ c.seed<<1)
	mask := len(c.slots) - 1
	for s := int(h>>33) & mask; ; s = (s + 1) & mask {
		if v := c.slots[s]; v == 0 || string(c.at(int(v-1))) == string(id) {
			return s
		}
	}
}

// Encode returns the file for the collected ids. It takes as much memory as the file has bytes, and sorts with two
// goroutines.
func (c *Collector) Encode() []byte {
	out := make([]byte, firstID+c.n*c.idLen+crcSize)
	ids := out[firstID : len(out)-crcSize]
	// Ids are evenly distributed, so the bucket for each value of the first bits contains few ids.
	width := min(bits.Len(uint(c.n)/8), 16)
	bucket := func(id []byte) int { return int(binary.BigEndian.Uint16(id)) >> (16 - width) }
	ends := make([]int, 1<<width+1)
	for i := range c.n {
		ends[bucket(c.at(i))+1]++
	}
	for b := range 1 << width {
		ends[b+1] += ends[b]
	}
	next := append([]int{}, ends...)
	for i := range c.n {
		id := c.at(i)
		b := bucket(id)
		copy(ids[next[b]*c.idLen:], id)
		next[b]++
	}
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for b := half << width / 2; b < (half+1)<<width/2; b++ {
				if ends[b+1]-ends[b] > 1 {
					sort.Sort(records{ids[ends[b]*c.idLen : ends[b+1]*c.idLen], c.idLen})
				}
			}
		})
	}
	wg.Wait()
	seal(out, c.idLen)
	return out
}

// records sorts ids that follow each other.
type records struct {
	ids   []byte
	idLen int
}

func (r records) at(i int) []byte    { return r.ids[i*r.idLen : (i+1)*r.idLen] }
func (r records) Len() int           { return len(r.ids) / r.idLen }
func (r records) Less(i, j int) bool { return bytes.Compare(r.at(i), r.at(j)) < 0 }

func (r records) Swap(i, j int) {
	var id [32]byte
	copy(id[:], r.at(i))
	copy(r.at(i), r.at(j))
	copy(r.at(j), id[:])
}

// Merge returns the file with the ids of all sets, which have the format f.
func Merge(f object.Format, sets []*Set) []byte {
	most := 0
	for _, s := range sets {
		most += s.n
	}
	out := make([]byte, firstID, firstID+most*f.Size()+crcSize)
	for id := range all(sets) {
		out = append(out, id...)
	}
	out = append(out, make([]byte, crcSize)...)
	seal(out, f.Size())
	return out
}

// seal writes the header, the table and the checksum of a file whose ids are in place.
func seal(out []byte, idLen int) {
	copy(out, mark)
	binary.BigEndian.PutUint32(out[len(mark):], version)
	binary.BigEndian.PutUint32(out[len(mark)+4:], uint32(idLen))
	r := records{out[firstID : len(out)-crcSize], idLen}
	i := 0
	for b := range 256 {
		i += sort.Search(r.Len()-i, func(k int) bool { return int(r.at(i + k)[0]) > b })
		binary.BigEndian.PutUint32(out[headerSize+4*b:], uint32(i))
	}
	body := out[:len(out)-crcSize]
	binary.BigEndian.PutUint32(out[len(body):], crc32.Checksum(body, checksum))
}
