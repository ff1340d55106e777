#!/usr/bin/env python3
"""net.py: a network of many nodes on this one Linux machine, to measure on a real network what a program costs there:
real TCP, real queues, real sharing of links; only the links are slow, so that two cores can feed them all.

    net.py torus:4x4 20 -- COMMAND ...    builds the network with links of 20 Mbit/s, runs the command with one MPI rank
                                          on every node, and takes the network down, whatever happens
    net.py full:2 25 --ranks 2 -- ...     two ranks on each node, which share memory: a site, a machine
    net.py down                           clears what a killed run has left

The network is one of comm/collectives/topology.h, a name or a file; build/tables links lists its links and routes.

How it is built. A node is a network namespace: interfaces, addresses and routes of its own. A link is a veth pair, a
cable with one end in each of two nodes. What a node sends into a cable goes through a token bucket (tc tbf), so both
directions have the full rate; a delay is made by tc netem. Node r has one address, 10.99.(r/250).(r%250+1); every node
forwards, by static routes.

How MPI runs on it. Open MPI 4, started as on a cluster: mpirun runs in node 0 and logs in to the others, only that this
program takes the place of ssh. Each node has a host name of its own, so that no shared memory goes past the network.

What to expect. A full packet is MTU + 14 bytes on the wire and carries MTU - 52 of data. After a pause a link lets
--burst bytes through at once. 16 nodes on 2 cores, with all 64 directions busy at 20 Mbit/s, got 95 % of it; give them
no more, and keep the machine quiet: a rank that waits for a core is a late message. Needs root, iproute2, util-linux
(unshare), procps (sysctl), Open MPI 4 (MPIRUN=... is another mpirun)."""
import argparse, os, re, shutil, signal, subprocess, sys

SELF = os.path.abspath(__file__)
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(SELF)))
PREFIX, STATE = 'threefold-net-', '/run/threefold-net'  # of namespaces; mpirun's files

# reno: every namespace may use it, and nothing is dropped that a better one would handle better. notsent_lowat: a short
# message must not stand behind a megabyte that waits in the socket already.
SYSTEM = ('ip_forward=1 conf.all.rp_filter=0 conf.default.rp_filter=0 tcp_congestion_control=reno '
          'tcp_notsent_lowat=16384 tcp_slow_start_after_idle=0 tcp_no_metrics_save=1').split()
BUFFERS = ['tcp_rmem=4096 1048576 1048576', 'tcp_wmem=4096 1048576 1048576']

# Messages up to 4 MB are sent at once ("eager"). Longer ones ask first and wait for the answer, which would stand in
# the queue behind what flows the other way: with Open MPI's usual 64 KB two neighbours that exchange a megabyte got
# half the rate.
MPI_FLAGS = f"""--allow-run-as-root --bind-to none --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include node
 --mca orte_tmpdir_base {STATE} --mca btl_vader_backing_directory {STATE} --mca pml ob1 --mca mpi_yield_when_idle 1
 --mca btl tcp,vader,self --mca btl_tcp_if_include node --mca btl_tcp_flags send --mca btl_base_warn_component_unused 0
 --mca btl_tcp_eager_limit 4194304 --mca btl_tcp_rndv_eager_limit 4194304 --mca btl_tcp_max_send_size 4194304
 --mca btl_tcp_free_list_num 1 --mca btl_tcp_free_list_inc 2""".split()


def stop(text):
    sys.exit(f'net.py: {text}')


def address(node):
    return f'10.99.{node // 250}.{node % 250 + 1}'


def mac(a, b):
    return f'02:99:{a // 256:02x}:{a % 256:02x}:{b // 256:02x}:{b % 256:02x}'


def batch(tool, lines, node=None):
    """Gives lines to ip or tc, in a node."""
    where = [] if node is None else ['-n', f'{PREFIX}{node}']
    p = subprocess.run([tool, *where, '-batch', '-'], input='\n'.join(lines) + '\n', capture_output=True, text=True,
                       check=False)
    if p.returncode:
        stop(f'{tool} could not set up {"the cables" if node is None else f"node {node}"}: {p.stderr.strip()}')


def read_links(network, mbit):
    """(nodes, [(a, b, Mbit/s, microseconds)], [(from, to, next)])"""
    program = os.path.join(PROJECT, os.environ.get('BUILD', 'build'), 'tables')
    if not os.path.exists(program):
        stop(f'{program} is missing: make build/tables')
    p = subprocess.run([program, 'links', '--topology', network, '--mbit', f'{mbit:g}'], stdout=subprocess.PIPE,
                       text=True, check=False)
    if p.returncode:
        sys.exit(p.returncode)
    lines = [line.split() for line in p.stdout.splitlines()]
    links = [(int(a), int(b), float(rate), float(delay)) for a, b, rate, delay in
             (line for line in lines if line[0].isdigit())]
    return int(lines[0][1]), links, [tuple(map(int, line[1:])) for line in lines if line[0] == 'route']


def setup(o, nodes, links, routes):
    """What ip and tc have to do in each node."""
    ip = [['link set lo up', 'link add node type veth peer name stub', 'link set stub up',
           f'addr add {address(r)}/32 dev node', f'link set node mtu {o.mtu} up'] for r in range(nodes)]
    tc = [[] for _ in range(nodes)]
    for one, other, mbit, delay in links:
        for a, b in ((one, other), (other, one)):
            ip[a] += [f'link set to{b} address {mac(a, b)} mtu {o.mtu} up',
                      f'neigh add {address(b)} dev to{b} lladdr {mac(b, a)} nud permanent']
            queue = 'root'
            if delay:
                tc[a].append(f'qdisc add dev to{b} root handle 1: netem delay {delay:g}us limit 100000')
                queue = 'parent 1:1'
            # limit: a queue that holds whatever TCP may have on the way, so nothing is dropped
            tc[a].append(f'qdisc add dev to{b} {queue} tbf rate {mbit:g}mbit burst {o.burst} limit 16000000')
    for a, to, via in routes:
        ip[a].append(f'route add {address(to)}/32 via {address(via)} dev to{via} onlink src {address(a)}')
    return ip, tc


def up(o):
    """Builds the network. Returns how many nodes have ranks: those to which routes lead, not the switches."""
    nodes, links, routes = read_links(o.network, o.mbit)
    ip, tc = setup(o, nodes, links, routes)
    os.makedirs(STATE)
    for r in range(nodes):
        subprocess.run(['ip', 'netns', 'add', f'{PREFIX}{r}'], check=True)
        subprocess.run(['ip', 'netns', 'exec', f'{PREFIX}{r}', 'sysctl', '-q', '-w']
                       + [f'net.ipv4.{s}' for s in SYSTEM + BUFFERS], check=True)
    batch('ip', [f'link add to{b} netns {PREFIX}{a} type veth peer name to{a} netns {PREFIX}{b}' for a, b, *_ in links])
    for r in range(nodes):
        batch('ip', ip[r], r)
        batch('tc', tc[r], r)
    return 1 + max(to for _, to, _ in routes)


def spaces():
    listed = subprocess.run(['ip', 'netns', 'list'], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return [x for x in listed if x.startswith(PREFIX)]


def down():
    """Ends the processes in the nodes, and removes these; the cables go with their ends."""
    for space in spaces():
        pids = subprocess.run(['ip', 'netns', 'pids', space], stdout=subprocess.PIPE, text=True, check=False).stdout
        subprocess.run(['kill', '-KILL', *pids.split()], check=False) if pids else None
        subprocess.run(['ip', 'netns', 'del', space], check=False)
    shutil.rmtree(STATE, ignore_errors=True)


def bytes_sent():
    """Lines "FROM TO BYTES", for every direction of every link."""
    for space in spaces():
        text = subprocess.run(['ip', '-n', space, '-s', 'link'], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name, sent in re.findall(r'^\d+: to(\d+)@.*?TX:.*?\n *(\d+)', text, re.M | re.S):
            yield f'{space.removeprefix(PREFIX)} {name} {sent}'


def in_node(node, command):
    """A command in a node, whose host name is the node's."""
    return ['ip', 'netns', 'exec', f'{PREFIX}{node}', 'unshare', '--uts', 'sh', '-c', 'hostname "$1"; shift; exec "$@"',
            'sh', f'node{node}', *command]


def enter(host, *words):
    """As "ssh HOST COMMAND" would: mpirun gives shell text."""
    _, _, high, low = map(int, host.split('.'))
    command = in_node(high * 250 + low - 1, ['sh', '-c', ' '.join(words)])
    os.execvp(command[0], command)


def run(o):
    ranked = up(o)
    hosts = ','.join(f'{address(r)}:{o.ranks}' for r in range(ranked))
    mpirun = [os.environ.get('MPIRUN', 'mpirun'), '--host', hosts, '-np', str(ranked * o.ranks), '--mca',
              'plm_rsh_agent', f'{SELF} enter', *MPI_FLAGS]
    status = subprocess.run(in_node(0, mpirun + o.command), stdin=subprocess.DEVNULL, check=False).returncode
    if o.bytes:
        with open(o.bytes, 'w', encoding='ascii') as f:
            print(*bytes_sent(), sep='\n', file=f)
    return status


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('network', help='torus:4x4, mesh:3x3, full:2, fattree:4,1 (a switch), ...; or a file')
    parser.add_argument('mbit', type=float, help='rate of a link, for those of which a file does not say it')
    parser.add_argument('--ranks', type=int, default=1, help='on each node [1]')
    parser.add_argument('--mtu', type=int, default=9000, help='of a packet, bytes [9000]')
    parser.add_argument('--burst', type=int, default=12000, help='bytes; at least MTU + 14 [12000]')
    parser.add_argument('--bytes', metavar='FILE', help='gets what every link has carried: lines FROM TO BYTES')
    parser.add_argument('command', nargs='+', help='after --')
    o = parser.parse_args()
    if not (o.mbit > 0 and o.ranks > 0 and 576 <= o.mtu <= 65000 and o.burst >= o.mtu + 14):
        stop('rate and ranks are above 0, the MTU 576 to 65000, the burst at least 14 more')
    return o


def on_signal(number, _):
    sys.exit(128 + number)


def main():
    if sys.argv[1:2] == ['enter']:
        enter(*sys.argv[2:])
    o = None if sys.argv[1:] == ['down'] else parse()
    if os.geteuid() != 0:
        stop('making networks needs root')
    if o and spaces():
        stop('a network is up already, or was left by a killed run: net.py down')
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        return run(o) if o else 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        down()


if __name__ == '__main__':
    sys.exit(main())
