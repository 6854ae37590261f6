// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

import {IERC721} from "./interfaces/IERC721.sol";

type Price is uint128;

error TooLow(uint256 offered, uint256 needed);

/// @notice What an auction house must be able to tell.
interface IAuctionHouse {
    event Opened(uint256 indexed id, address indexed seller);
    event Settled(uint256 indexed id, address indexed winner, uint256 amount);

    function open(address token, uint256 tokenId, uint64 duration) external returns (uint256 id);

    function bid(uint256 id) external payable;
}

struct Bid {
    address bidder;
    uint96 amount;
    uint64 placedAt;
}

library Fees {
    uint256 internal constant BASIS = 10_000;

    function share(uint256 amount, uint256 points) internal pure returns (uint256) {
        return (amount * points) / BASIS;
    }
}

abstract contract Owned {
    address public owner;

    constructor(address first) {
        owner = first;
    }

    modifier onlyOwner() {
        require(msg.sender == owner, "not the owner");
        _;
    }

    function transferOwnership(address next) public virtual onlyOwner {
        owner = next;
    }
}

contract AuctionHouse is IAuctionHouse, Owned {
    using Fees for uint256;

    enum Phase {
        None,
        Running,
        Settled
    }

    struct Auction {
        address seller;
        IERC721 token;
        uint256 tokenId;
        uint64 endsAt;
        Phase phase;
        Bid best;
    }

    mapping(uint256 => Auction) private auctions;
    mapping(address => uint256) public refunds;
    uint256 private nextId = 1;
    uint256 public feePoints;

    constructor(uint256 points) Owned(msg.sender) {
        feePoints = points;
    }

    modifier running(uint256 id) {
        require(auctions[id].phase == Phase.Running, "not running");
        _;
    }

    receive() external payable {
        refunds[msg.sender] += msg.value;
    }

    fallback() external payable {
        revert("no such function");
    }

    function open(address token, uint256 tokenId, uint64 duration) external override returns (uint256 id) {
        id = nextId++;
        Auction storage auction = auctions[id];
        auction.seller = msg.sender;
        auction.token = IERC721(token);
        auction.tokenId = tokenId;
        auction.endsAt = uint64(block.timestamp) + duration;
        auction.phase = Phase.Running;
        auction.token.transferFrom(msg.sender, address(this), tokenId);
        emit Opened(id, msg.sender);
    }

    function bid(uint256 id) external payable override running(id) {
        Auction storage auction = auctions[id];
        uint256 needed = minimum(auction.best.amount);
        if (msg.value < needed) revert TooLow(msg.value, needed);
        refunds[auction.best.bidder] += auction.best.amount;
        auction.best = Bid(msg.sender, uint96(msg.value), uint64(block.timestamp));
    }

    function settle(uint256 id) external running(id) {
        Auction storage auction = auctions[id];
        require(block.timestamp >= auction.endsAt, "still running");
        auction.phase = Phase.Settled;
        uint256 fee = uint256(auction.best.amount).share(feePoints);
        refunds[owner] += fee;
        refunds[auction.seller] += auction.best.amount - fee;
        auction.token.transferFrom(address(this), auction.best.bidder, auction.tokenId);
        emit Settled(id, auction.best.bidder, auction.best.amount);
    }

    function withdraw() external {
        uint256 amount = refunds[msg.sender];
        refunds[msg.sender] = 0;
        (bool sent, ) = msg.sender.call{value: amount}("");
        require(sent, "not sent");
    }

    function minimum(uint256 best) private pure returns (uint256) {
        return best + best / 20 + 1;
    }
}

function toPrice(uint256 amount) pure returns (Price) {
    return Price.wrap(uint128(amount));
}
